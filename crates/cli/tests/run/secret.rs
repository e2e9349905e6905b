//! Who may use a node on another host.

use crate::harness::{
    Hosts, Node, PATIENCE, Run, SECRET_VARIABLE, legato, messages, poll_until, sized, status_of,
    test_directory, test_program,
};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const MTU: u32 = 1500;
const OF_A_STREAM: &str = "refused a stream without the secret";

pub(crate) fn new_secret(name: &str) -> PathBuf {
    let file = test_directory().join(name);
    let output = Command::new(legato())
        .args(["secret", "new"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        file.to_str().unwrap()
    );
    file
}

pub(crate) fn with_secret(mut command: Command, file: &Path) -> Command {
    command.env(SECRET_VARIABLE, file);
    command
}

/// Everything in hexadecimal that is in a secret's file.
fn digits(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn who_has_the_secret_of_a_node_uses_it() {
    let hosts = Hosts::joined(MTU);
    let secret = new_secret("right");
    for address in [
        format!("roce://{}", hosts.server.address),
        format!("roce+tcp://{}:4801", hosts.server.address),
    ] {
        // It needs no --insecure.
        let server = with_secret(hosts.server.command(legato()), &secret);
        let node = Node::start_by(server, "512MiB", &address);
        let run = Run::far(test_program("fill"))
            .arguments(["--bytes", sized("96MiB", "20MiB")])
            .arguments(["--threads", "2", "--rounds", "2"])
            .arguments(["--within", sized("32MiB", "8MiB")])
            .cache_mib(sized(32, 8))
            .option("--nodes", &address)
            .option("--secret-file", secret.to_str().unwrap())
            .on(&hosts.client);
        run.finish().expect_code(0).expect_far_pages();
        poll_until("the node is empty", PATIENCE, || {
            let client = with_secret(hosts.client.command(legato()), &secret);
            let status = status_of(client, &address);
            status["used_bytes"] == 0 && status["clients"] == 0
        });
        assert!(node.terminate().success());
    }
}

#[test]
fn who_has_not_the_secret_of_a_node_is_told_so_in_one_line() {
    let hosts = Hosts::joined(MTU);
    let (right, wrong) = (new_secret("right"), new_secret("wrong"));
    for (address, open) in [
        (format!("roce://{}", hosts.server.address), 4802),
        (format!("roce+tcp://{}:4803", hosts.server.address), 4804),
    ] {
        let server = with_secret(hosts.server.command(legato()), &right);
        let node = Node::start_by(server, "64MiB", &address);
        let kind = address.split(':').next().unwrap();
        let open = format!("{kind}://{}:{open}", hosts.server.address);
        let unguarded = hosts.server.node("64MiB", &open);
        for (address, secret, row) in [
            (
                &address,
                Some(&wrong),
                "memory node ADDR refused the secret",
            ),
            (&address, None, "memory node ADDR: it takes only"),
            (&open, Some(&right), "memory node ADDR has no secret"),
        ] {
            let mut run = Run::far("echo")
                .arguments(["started"])
                .option("--nodes", address);
            if let Some(secret) = secret {
                run = run.option("--secret-file", secret.to_str().unwrap());
            }
            let run = run.on(&hosts.client).finish().expect_code(125);
            assert_eq!(run.output(), "");
            assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
            run.expect_told(row);
            assert!(run.stderr.contains(address.as_str()), "{}", run.stderr);
        }
        if kind == "roce" {
            // Over a stream it is refused before there is a connection.
            let client = with_secret(hosts.client.command(legato()), &right);
            assert_eq!(status_of(client, &address)["peers_refused"], 2);
            assert_eq!(hosts.client.status_of(&open)["peers_refused"], 1);
        }
        let (of_node, of_unguarded): (&[_], _) = match kind {
            "roce" => (
                &[
                    "refused a peer with a wrong secret",
                    "refused a peer without a secret",
                ],
                "refused a peer with a secret",
            ),
            _ => (&[OF_A_STREAM], OF_A_STREAM),
        };
        of_node.iter().for_each(|row| node.wait_for_log(row));
        unguarded.wait_for_log(of_unguarded);
        assert!(node.terminate().success());
        assert!(unguarded.terminate().success());
    }
}

#[test]
fn a_file_that_is_no_secret_of_ones_own_is_refused_in_one_line() {
    let (exposed, cut, missing) = (
        new_secret("exposed"),
        new_secret("cut"),
        test_directory().join("missing"),
    );
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o640)).unwrap();
    let text = fs::read_to_string(&cut).unwrap();
    fs::write(&cut, &text[..50]).unwrap();
    let directory = test_directory();
    for (file, row, word) in [
        (&exposed, "secret file FILE: others", "mode 0640"),
        (&cut, "secret file FILE: REASON; copy it again", "was cut"),
        (
            &missing,
            "WHAT: REASON; check the path",
            "no such file or directory (ENOENT)",
        ),
        (&directory, "secret file FILE: it is no file", "no file"),
    ] {
        let file = file.to_str().unwrap();
        for arguments in [
            &["run", "--nodes", "roce://127.0.0.1:4805"][..],
            &["node", "status", "--node", "roce://127.0.0.1:4805"],
            &[
                "node",
                "--memory",
                "16MiB",
                "--listen",
                "roce://127.0.0.1:4805",
            ],
        ] {
            let mut command = Command::new(legato());
            command.args(arguments).args(["--secret-file", file]);
            let mut refused = 2;
            if arguments[0] == "run" {
                command.args(["--", "echo", "started"]);
                refused = 125;
            }
            let told = messages::expect_refused(&mut command, refused, row);
            assert!(told.contains(word) && told.contains(file), "{told}");
        }
    }
}

// P-85
#[test]
fn a_secret_is_seen_in_no_process_and_no_log() {
    let hosts = Hosts::joined(MTU);
    let secret = new_secret("hidden");
    let address = format!("roce://{}:4806", hosts.server.address);
    let server = with_secret(hosts.server.command(legato()), &secret);
    let node = Node::start_by(server, "64MiB", &address);
    let script =
        "cat /proc/self/environ /proc/self/cmdline /proc/$PPID/environ /proc/$PPID/cmdline";
    let run = Run::far("sh")
        .arguments(["-c", script])
        .option("--nodes", &address)
        .option("--secret-file", secret.to_str().unwrap())
        .environment("LEGATO_LOG", "trace")
        .on(&hosts.client)
        .finish()
        .expect_code(0);
    let (shown, digits) = (run.output(), digits(&secret));
    assert!(shown.contains("--secret-file"), "{shown}");
    for text in [&shown, &run.stderr] {
        assert!(
            !text.contains(&digits[..16]) && !text.contains(&digits[48..]),
            "{text}"
        );
    }
    assert!(node.terminate().success());
}
