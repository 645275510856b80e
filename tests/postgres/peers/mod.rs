//! What proxies are known to get wrong, each told to a server directly, through a listener without
//! a rule, and through one that fences the whole database: all three hear the same bytes.

mod copying;
mod ending;
mod extended;
mod large;
mod startup;

use crate::client::{Client, Reply};
use crate::stack::sign;
use crate::world::World;

/// A server with both kinds of listeners before it.
pub struct Three {
    pub world: World,
}

impl Three {
    pub fn new() -> Three {
        let world = World::with(|setup| setup.and("open", "", ""));
        Three { world }
    }

    /// Begins a session each way.
    pub fn sessions(&self) -> [(&'static str, Client); 3] {
        let proxy = &self.world.proxy;
        [
            ("direct", self.world.direct()),
            ("without a rule", Client::connect(proxy.addresses[1])),
            ("fenced", proxy.holder(7)),
        ]
    }

    /// Runs the script each way. What it changes at the server must not be seen by the next.
    #[track_caller]
    pub fn hear_the_same(&self, script: impl Fn(&mut Client)) {
        let mut direct: Option<Vec<Reply>> = None;
        for (way, mut client) in self.sessions() {
            println!("{way}");
            script(&mut client);
            let heard: Vec<Reply> = client.heard.iter().map(comparable).collect();
            match &direct {
                None => direct = Some(heard),
                Some(direct) => assert_eq!(direct, &heard, "{way}"),
            }
        }
    }
}

/// Without what differs from session to session: the pid of who notifies, the oid of a table.
fn comparable(reply: &Reply) -> Reply {
    let mut reply = reply.clone();
    match reply.tag {
        b'A' => reply.body[..4].fill(0),
        b'T' => forget_tables(&mut reply.body),
        _ => {}
    }
    reply
}

/// RowDescription: a count, then for each column its name and 18 bytes, of which 4 are the table's.
fn forget_tables(body: &mut [u8]) {
    let mut at = 2;
    while at < body.len() {
        let name = body[at..].iter().position(|byte| *byte == 0);
        at += name.expect("a name's end") + 1;
        body[at..at + 4].fill(0);
        at += 18;
    }
}

/// A session under a ticket for the lock `app`, with these parameters too.
pub fn fenced(world: &World, parameters: &[(&str, &str)]) -> Client {
    let ticket = sign(&world.proxy.key, "app", 7);
    let mut all = vec![("ringfence.token", &*ticket)];
    all.extend(parameters);
    Client::connect_with(world.proxy.address(), &all)
}
