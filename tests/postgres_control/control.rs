//! Who is vouched for, who is cancelled, and what the control role must be allowed to do.

use ringfence::proxy::postgres::control::{Claimed, ControlError, SessionId, Unfit};

use crate::fixture::{Session, config, config_as, control_of, eventually};
use crate::postgres::{APP, CONTROL, Postgres};

const SUPERUSER: (&str, &str) = ("postgres", "");

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_vouched_for_by_its_pid_and_port() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let (one, other) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    let id = one.id(&control).await;
    assert_eq!(id.pid, one.pid);
    assert_ne!(id, other.id(&control).await);
    // The same session again has the same name.
    assert_eq!(id, one.id(&control).await);

    let anothers = Claimed {
        pid: other.pid,
        ..one.claimed()
    };
    let refused = control.vouch(&anothers).await.unwrap_err();
    assert!(matches!(refused, Unfit::Anothers { .. }), "{refused}");
    assert!(refused.to_string().contains("upstream_path"), "{refused}");
    let nobodys = Claimed {
        pid: 1,
        ..one.claimed()
    };
    let refused = control.vouch(&nobodys).await.unwrap_err();
    assert!(matches!(refused, Unfit::NotListed(1)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_the_servers_own_is_no_session() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let session = Session::connect_as(&server, "postgres", "postgres").await;
    let row = session
        .client
        .query_one(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'",
            &[],
        )
        .await;
    let claimed = Claimed {
        pid: row.unwrap().get(0),
        ..session.claimed()
    };
    let refused = control.vouch(&claimed).await.unwrap_err();
    assert!(matches!(refused, Unfit::Anothers { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_relay_role_and_database_are_compared() {
    let server = Postgres::start();
    let mut config = config(&server);
    config.upstream_path = ringfence::config::UpstreamPath::Relayed;
    let control = control_of(&config);
    let session = Session::connect(&server).await;
    let relayed = Claimed {
        port: 1,
        ..session.claimed()
    };
    assert_eq!(control.vouch(&relayed).await.unwrap().pid, session.pid);
    for (user, database) in [("other", APP), (APP, "postgres")] {
        let claimed = Claimed {
            user,
            database,
            ..relayed
        };
        let refused = control.vouch(&claimed).await.unwrap_err();
        assert!(matches!(refused, Unfit::Anothers { .. }), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_superusers_session_needs_a_superuser_to_end_it() {
    let server = Postgres::start();
    let session = Session::connect_as(&server, "postgres", APP).await;
    let refused = control_of(&config(&server)).vouch(&session.claimed()).await;
    assert!(matches!(refused, Err(Unfit::Superuser)), "{refused:?}");
    let as_superuser = control_of(&config_as(&server, SUPERUSER, ""));
    let id = as_superuser.vouch(&session.claimed()).await.unwrap();
    assert_eq!(id.pid, session.pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_seen_is_not_vouched_for() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let admin = Session::connect_as(&server, "postgres", "postgres").await;
    let session = Session::connect(&server).await;
    session.id(&control).await;
    admin
        .run(&format!("REVOKE pg_read_all_stats FROM {}", CONTROL.0))
        .await;
    let refused = control.vouch(&session.claimed()).await;
    assert!(matches!(refused, Err(Unfit::Hidden)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_vouches_for_nobody_and_is_found_again() {
    let mut server = Postgres::start();
    let control = control_of(&config(&server));
    Session::connect(&server).await.id(&control).await;
    server.crash();
    let gone = Claimed {
        pid: 1,
        port: 1,
        user: APP,
        database: APP,
    };
    eventually("an error of ours", async || {
        matches!(control.vouch(&gone).await, Err(Unfit::Unasked(_)))
    })
    .await;
    server.start_again();
    let session = Session::connect(&server).await;
    assert_eq!(session.id(&control).await.pid, session.pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_the_control_role_are_checked() {
    let mut server = Postgres::start();
    let check = |user: (&str, &str)| control_of(&config_as(&server, user, "")).check();
    check(CONTROL).unwrap();
    check(SUPERUSER).unwrap();
    let refused = check(("other", "")).unwrap_err();
    assert!(matches!(refused, ControlError::Denied(_)), "{refused}");
    let told = refused.to_string();
    let grant = "GRANT pg_read_all_stats, pg_signal_backend TO \"other\"";
    assert!(told.contains(grant), "{told}");
    let refused = check((CONTROL.0, "wrong")).unwrap_err();
    assert!(matches!(refused, ControlError::Denied(_)), "{refused}");
    let refused = check(("nobody", "")).unwrap_err();
    assert!(matches!(refused, ControlError::Denied(_)), "{refused}");
    // It may come up later.
    server.crash();
    let away = control_of(&config_as(&server, CONTROL, ""));
    away.check().unwrap();
}

#[tokio::test]
async fn the_check_does_not_need_the_callers_runtime() {
    let server = Postgres::start();
    // A runtime with one thread, which this blocks.
    control_of(&config(&server)).check().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_is_cancelled_for_its_own_session_only() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let session = Session::connect(&server).await;
    let id = session.id(&control).await;
    let sleep = async {
        let slept = session.client.simple_query("SELECT pg_sleep(600)").await;
        slept.unwrap_err().code().unwrap().code().to_owned()
    };
    let cancel = async {
        let asleep = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'";
        let watcher = Session::connect_as(&server, "postgres", "postgres").await;
        eventually("the session sleeps", async || {
            let rows = watcher.client.query(asleep, &[&id.pid]).await;
            !rows.unwrap().is_empty()
        })
        .await;
        // One with its pid that began at another time is another one.
        let other = SessionId {
            started: id.started + 1,
            ..id.clone()
        };
        control.cancel(&other).await.unwrap();
        let rows = watcher.client.query(asleep, &[&id.pid]).await;
        assert_eq!(rows.unwrap().len(), 1);
        control.cancel(&id).await.unwrap();
    };
    let (code, ()) = tokio::join!(sleep, cancel);
    assert_eq!(code, "57014");
    assert!(session.answers().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_servers_answer_is_none() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let id = Session::connect(&server).await.id(&control).await;
    let elsewhere = SessionId {
        system: "1".into(),
        ..id
    };
    let refused = control.cancel(&elsewhere).await;
    assert!(
        matches!(refused, Err(ControlError::Unfit(_))),
        "{refused:?}"
    );
}
