//! `ringfence demo-writer`: the writer that is paused, as a process of its own.
//!
//! It does what careful programs do: takes the lock, looks that it holds it, and only then writes.
//! Between the look and the end of the write lies the time in which the process is stopped.
//!
//! It talks to the demo over its pipes, one line per step: see [`Step`].

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::cli::DemoWriterArgs;
use crate::client::{Client, SessionOptions, Wait};
use crate::cmd::exit::{self, Failure};
use crate::cmd::print_line;

use super::http;

/// What the writer says on stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// `held TOKEN`: it holds the lock.
    Held(String),
    /// `half`: half of its upload is on the way.
    Half,
    /// `status CODE TEXT`: the upload was answered.
    Status(u16, String),
    /// `error TEXT`: the upload was not answered.
    Error(String),
}

impl Step {
    fn line(&self) -> String {
        match self {
            Step::Held(token) => format!("held {token}"),
            Step::Half => "half".to_owned(),
            Step::Status(code, text) => format!("status {code} {}", text.replace('\n', " ")),
            Step::Error(text) => format!("error {}", text.replace('\n', " ")),
        }
    }

    /// Reads what [`Step::line`] wrote.
    pub fn parse(line: &str) -> Option<Step> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "held" => Some(Step::Held(rest.to_owned())),
            "half" => Some(Step::Half),
            "error" => Some(Step::Error(rest.to_owned())),
            "status" => {
                let (code, text) = rest.split_once(' ').unwrap_or((rest, ""));
                Some(Step::Status(code.parse().ok()?, text.to_owned()))
            }
            _ => None,
        }
    }
}

/// Takes the lock, begins to write, and finishes when a line comes on stdin.
pub async fn run(args: DemoWriterArgs) -> Result<u8, Failure> {
    let client = Client::new([args.lockd.clone()])?;
    let options = SessionOptions {
        ttl: args.ttl,
        holder: "writer A".to_owned(),
        ..SessionOptions::default()
    };
    let session = client.open_session(options).await?;
    let guard = session.acquire(&args.name, Wait::Forever).await?;
    print_line(&Step::Held(guard.token().to_string()).line())?;

    next_line().await?;
    if !guard.is_held() {
        return Err(Failure::new(
            exit::LOST,
            "the lock is lost before the write began",
        ));
    }
    let content = Bytes::from(args.content.into_bytes());
    let (first, rest) = (
        content.slice(..content.len() / 2),
        content.slice(content.len() / 2..),
    );
    let (parts, body) = mpsc::channel(1);
    let writing = http::put_slowly(&args.target, guard.ticket(), content.len(), body);
    let feeding = async {
        // The receiver ends early when the upload is refused before its end: told by its answer.
        let _ = parts.send(first).await;
        // There is room again once the connection has taken it.
        drop(parts.reserve().await);
        print_line(&Step::Half.line())?;
        next_line().await?;
        let _ = parts.send(rest).await;
        drop(parts);
        Ok::<_, Failure>(())
    };
    let (answer, fed) = tokio::join!(writing, feeding);
    fed?;
    let step = match answer {
        Ok(answer) => Step::Status(answer.status.as_u16(), answer.body),
        Err(error) => Step::Error(error),
    };
    print_line(&step.line())?;
    Ok(exit::OK)
}

/// Waits for a line on stdin.
async fn next_line() -> Result<(), Failure> {
    let reading = || std::io::stdin().read_line(&mut String::new());
    match tokio::task::spawn_blocking(reading).await {
        Ok(Ok(1..)) => Ok(()),
        Ok(Ok(0)) => Err(Failure::new(exit::FAILED, "the demo is gone")),
        Ok(Err(error)) => Err(Failure::because("stdin", error)),
        Err(error) => Err(Failure::because("stdin", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_their_line() {
        let steps = [
            Step::Held("7".into()),
            Step::Half,
            Step::Status(412, "stale token".into()),
            Step::Status(200, String::new()),
            Step::Error("connection reset".into()),
        ];
        for step in steps {
            assert_eq!(Step::parse(step.line().trim()), Some(step));
        }
        assert_eq!(Step::parse("status x"), None);
        assert_eq!(Step::parse("else"), None);
    }
}
