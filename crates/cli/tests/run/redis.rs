//! A Redis server whose data set is two or three times its cache, loaded and read back by a client.

use crate::harness::{
    MIB, PATIENCE, Run, Running, poll_until, sized, system_program, test_directory,
};
use legato_base::Random;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Commands that are under way at once.
const PIPELINE: u64 = 256;

#[test]
fn redis_gives_back_what_was_stored() {
    let server = Run::far(system_program("redis-server")).memory_mib(1024);
    stores_and_gives_back(server, sized(64, 16), || {});
}

/// The server as it is to be run, without its arguments; its values are three times the cache, in a gate twice.
/// In the middle something happens, while it goes on.
pub(crate) fn stores_and_gives_back(server: Run, cache_mib: u64, happens: impl FnOnce()) {
    let keys = sized(3, 2) * cache_mib * MIB / value_bytes();
    let shuffled = |seed| shuffled(keys, seed);
    let directory = test_directory();
    let socket = directory.join("socket");
    let server = start(server.cache_mib(cache_mib), &socket);
    let mut client = Client::connect(&socket);
    let all: Vec<u64> = (0..keys).collect();
    client.store(&all, 1);
    client.check(&shuffled(1), |_| 1);
    happens();
    // A third is written anew, and everything read again.
    let third: Vec<u64> = shuffled(2).into_iter().filter(|key| key % 3 == 0).collect();
    client.store(&third, 2);
    client.check(&shuffled(3), |key| if key % 3 == 0 { 2 } else { 1 });
    client.send(&[b"DBSIZE"]);
    client.flush();
    assert_eq!(client.line(), format!(":{keys}"));
    client.send(&[b"SHUTDOWN", b"NOSAVE"]);
    client.flush();
    server.finish().expect_code(0).expect_far_pages();
    std::fs::remove_dir_all(&directory).unwrap();
}

fn start(server: Run, socket: &Path) -> Running {
    let run = server
        .arguments([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--unixsocket",
        ])
        .arguments([socket])
        .start();
    run.wait_for_output("connections at");
    run
}

fn shuffled(keys: u64, seed: u64) -> Vec<u64> {
    let mut random = Random::from_seed(seed);
    let mut keys: Vec<u64> = (0..keys).collect();
    for last in (1..keys.len()).rev() {
        keys.swap(last, random.below(last as u64 + 1) as usize);
    }
    keys
}

/// A key costs as many faults as its value has pages, and one or two more.
fn value_bytes() -> u64 {
    sized(1024, 4096)
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let mut random = Random::from_seed(key * 31 + version);
    (0..value_bytes() / 16)
        .flat_map(|_| format!("{:016x}", random.next_u64()).into_bytes())
        .collect()
}

/// As much of RESP2 as the test needs.
#[derive(Debug)]
struct Client {
    requests: Vec<u8>,
    stream: BufReader<UnixStream>,
}

impl Client {
    fn connect(socket: &Path) -> Self {
        let mut stream = None;
        poll_until("the server accepts", PATIENCE, || {
            stream = UnixStream::connect(socket).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self {
            requests: Vec::new(),
            stream: BufReader::new(stream),
        }
    }

    fn store(&mut self, keys: &[u64], version: u64) {
        for keys in keys.chunks(PIPELINE as usize) {
            for key in keys {
                self.send(&[
                    b"SET",
                    format!("key:{key}").as_bytes(),
                    &value(*key, version),
                ]);
            }
            self.flush();
            for _ in keys {
                assert_eq!(self.line(), "+OK");
            }
        }
    }

    fn check(&mut self, keys: &[u64], version: impl Fn(u64) -> u64) {
        for keys in keys.chunks(PIPELINE as usize) {
            for key in keys {
                self.send(&[b"GET", format!("key:{key}").as_bytes()]);
            }
            self.flush();
            for key in keys {
                assert_eq!(
                    self.line(),
                    format!("${}", value_bytes()),
                    "the length of key:{key}"
                );
                let mut expected = value(*key, version(*key));
                expected.extend(b"\r\n");
                let mut found = vec![0; expected.len()];
                self.stream.read_exact(&mut found).unwrap();
                assert!(found == expected, "the value of key:{key}");
            }
        }
    }

    fn send(&mut self, words: &[&[u8]]) {
        write!(self.requests, "*{}\r\n", words.len()).unwrap();
        for word in words {
            write!(self.requests, "${}\r\n", word.len()).unwrap();
            self.requests.extend_from_slice(word);
            self.requests.extend_from_slice(b"\r\n");
        }
    }

    fn flush(&mut self) {
        self.stream.get_mut().write_all(&self.requests).unwrap();
        self.requests.clear();
    }

    /// The next line, without its end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}
