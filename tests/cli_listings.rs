//! `ringfence locks`, `show`, `watch` and `keys`.

mod cli_support;

use cli_support::{Lockd, ringfence, until};
use ringfence::proto::registry_service_client::RegistryServiceClient;
use rustix::process::Signal;
use serde_json::{Value, json};

fn json_of(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn locks_lists_what_is_held_by_prefix() {
    let lockd = Lockd::start();
    assert_eq!(
        json_of(&lockd.run(&["locks", "--output", "json"])),
        json!([])
    );
    let _a = lockd.hold("tenant/1");
    let _b = lockd.hold("tenant/2");
    let _c = lockd.hold("orders");
    let all = json_of(&lockd.run(&["locks", "--output", "json"]));
    let names = |value: &Value| -> Vec<String> {
        let locks = value.as_array().unwrap();
        locks
            .iter()
            .map(|lock| lock["lock"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&all), ["orders", "tenant/1", "tenant/2"]);
    assert!(all[0]["token"].is_string(), "tokens are strings: {all}");
    let some = json_of(&lockd.run(&["locks", "tenant/", "--output", "json"]));
    assert_eq!(names(&some), ["tenant/1", "tenant/2"]);
    let text = lockd.run(&["locks"]);
    assert!(
        String::from_utf8_lossy(&text.stdout).contains("orders"),
        "{text:?}"
    );
}

#[test]
fn show_tells_holder_and_waiters() {
    let lockd = Lockd::start();
    assert_eq!(lockd.show("a")["holder"], Value::Null);
    let mut holder = lockd.start_command(&["lock", "a", "--holder", "job 7"]);
    holder.first_line();
    let _waiter = lockd.start_command(&["lock", "a", "--holder", "job 8"]);
    until("it waits", || {
        lockd.show("a")["waiters"].as_array().unwrap().len() == 1
    });
    let shown = lockd.show("a");
    assert_eq!(shown["holder"]["holder"], "job 7");
    assert_eq!(shown["waiters"][0]["holder"], "job 8");
    let text = String::from_utf8(lockd.run(&["show", "a"]).stdout).unwrap();
    assert!(text.contains("job 7") && text.contains("job 8"), "{text}");
}

#[test]
fn watch_prints_each_holder() {
    let lockd = Lockd::start();
    let mut watch = lockd.start_command(&["watch", "a", "--output", "json"]);
    let first: Value = serde_json::from_str(&watch.first_line()).unwrap();
    assert_eq!(first, json!({ "lock": "a", "holder": null }));
    let mut holder = lockd.start_command(&["lock", "a", "--holder", "job 7"]);
    watch.line_with("job 7");
    // The watch may tell of the grant before the holder itself has heard of it.
    holder.first_line();
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 0);
    until("it is free again", || {
        watch.stdout().matches(r#""holder":null"#).count() == 2
    });
    watch.signal(Signal::INT);
    assert_eq!(watch.code(), 0);
}

#[test]
fn an_unreachable_service_is_69_for_every_listing() {
    for args in [
        &["locks"][..],
        &["show", "a"],
        &["watch", "a"],
        &["keys", "show"],
        &["proxies", "list"],
    ] {
        let ran = ringfence()
            .args(args)
            .args(["--lockd", "http://127.0.0.1:1"])
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(69), "{args:?}: {ran:?}");
    }
    let args = ["audit", "tail", "--proxy", "http://127.0.0.1:1"];
    assert_eq!(
        ringfence().args(args).output().unwrap().status.code(),
        Some(69)
    );
}

#[test]
fn a_rotated_key_is_served_next_to_the_one_before() {
    let lockd = Lockd::start();
    let ids = |keys: &Value| -> Vec<String> {
        let keys = keys.as_array().unwrap();
        keys.iter()
            .map(|key| key["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let shown = || json_of(&lockd.run(&["keys", "show", "--output", "json"]));
    let before = ids(&shown());
    assert_eq!(before.len(), 1);
    let config = lockd.path("lockd.toml");
    let rotated = ringfence()
        .args(["keys", "rotate", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert!(rotated.status.success(), "{rotated:?}");
    until("both are served", || ids(&shown()).len() == 2);
    assert!(ids(&shown()).contains(&before[0]));
    assert_ne!(ids(&shown())[0], before[0], "the new one is first");
}

#[test]
fn generate_makes_a_key_once() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let generate = || {
        ringfence()
            .args(["keys", "generate", "--dir"])
            .arg(&keys)
            .output()
            .unwrap()
    };
    let (first, second) = (generate(), generate());
    assert!(first.status.success(), "{first:?}");
    assert_eq!(first.stdout, second.stdout);
    let text = String::from_utf8(first.stdout).unwrap();
    assert!(
        text.contains("k4.public.") && !text.contains("k4.secret."),
        "{text}"
    );
}

#[test]
fn a_proxy_is_taken_out_only_on_proof_and_on_record() {
    let lockd = Lockd::start();
    let proxies = || json_of(&lockd.run(&["proxies", "list", "--output", "json"]));
    assert_eq!(proxies(), json!([]));
    register(lockd.url.clone(), "edge-1");
    assert_eq!(
        proxies(),
        json!([{
            "instance": "edge-1",
            "admin": "http://127.0.0.1:7431",
            "store_id": "one",
            "locks": ["orders", "tenant/*"],
        }])
    );
    let text = String::from_utf8(lockd.run(&["proxies", "list"]).stdout).unwrap();
    assert!(
        text.contains("edge-1") && text.contains("orders tenant/*"),
        "{text}"
    );

    let remove = [
        "proxies",
        "remove",
        "edge-1",
        "--reason",
        "its machine is scrapped",
    ];
    let unproven = lockd.run(&remove);
    assert_eq!(unproven.status.code(), Some(64), "{unproven:?}");
    assert_eq!(proxies().as_array().unwrap().len(), 1);
    let proven = [&remove[..], &["--sessions-proven-dead"]].concat();
    // Where it cannot be recorded it is not done.
    let audit = lockd.path("data").join("audit");
    std::fs::write(&audit, "").unwrap();
    let unrecorded = lockd.run(&proven);
    assert_eq!(unrecorded.status.code(), Some(69), "{unrecorded:?}");
    assert_eq!(proxies().as_array().unwrap().len(), 1);
    std::fs::remove_file(&audit).unwrap();

    let removed = lockd.run(&proven);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(proxies(), json!([]));
    let acts = std::fs::read_to_string(audit.join("acts.jsonl")).unwrap();
    let act: Value = serde_json::from_str(acts.trim()).unwrap();
    assert_eq!(act["act"], "unregister");
    assert_eq!(act["subject"], "edge-1");
    assert_eq!(act["reason"], "its machine is scrapped");
    let again = lockd.run(&proven);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
}

fn register(lockd: String, instance: &str) {
    let request = ringfence::proto::RegisterRequest {
        instance: instance.to_owned(),
        store_id: "one".to_owned(),
        admin: "http://127.0.0.1:7431".to_owned(),
        patterns: vec!["orders".to_owned(), "tenant/*".to_owned()],
        ..Default::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = RegistryServiceClient::connect(lockd).await;
        client.unwrap().register(request).await.unwrap();
    });
}
