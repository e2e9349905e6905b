//! What comes of a call that fails, where it is not simply an error of the verb that made it.

use crate::run::Fault;
use crate::scenario::Ended;
use legato_verbs::VerbsError;

/// What is expected of the first and the second failing call of a function: any of these, word for
/// word.
pub(crate) fn expected_outcome(function: &str, call: u64, errno: i32) -> Vec<String> {
    let others = OTHERS
        .iter()
        .find(|(name, calls, ..)| *name == function && calls.contains(&call));
    if let Some((_, _, outcomes, _)) = others {
        return outcomes.iter().map(|&outcome| outcome.to_owned()).collect();
    }
    // The header's inline functions add the underscore, and those who read the error do not know it.
    let symbol = function.trim_start_matches('_').to_owned();
    let symbol = Box::leak(symbol.into_boxed_str());
    if !can_fail(function) {
        return vec!["done".to_owned()];
    }
    let refused = Ended::Verb(VerbsError::System {
        call: symbol,
        errno,
    });
    vec![format!("{refused:?}")]
}

/// Function, which of its calls, how the scenario may end instead, and why.
type Other = (
    &'static str,
    &'static [u64],
    &'static [&'static str],
    &'static str,
);

const OTHERS: &[Other] = &[
    (
        "ibv_close_device",
        &[1, 2],
        &["done"],
        "the last call of a provider's end, which has nobody to tell",
    ),
    (
        "ibv_destroy_comp_channel",
        &[1, 2],
        &["done"],
        "as ibv_close_device",
    ),
    (
        "ibv_get_async_event",
        &[1, 2],
        &["done"],
        "what could not be got is there still, and is got in the next turn",
    ),
    (
        "ibv_get_cq_event",
        &[1, 2],
        &["done"],
        "as ibv_get_async_event",
    ),
    (
        "rdma_get_cm_event",
        &[1, 2],
        &["done"],
        "as ibv_get_async_event",
    ),
    (
        "ibv_get_device_name",
        &[1],
        &["Open(NoDeviceAt(127.0.0.1))"],
        "a device without a name is none",
    ),
    (
        "ibv_get_device_name",
        &[2],
        &["Open(NoSuchDevice(\"standin0\"))"],
        "a device without a name is none",
    ),
    (
        "ibv_poll_cq",
        &[1, 2],
        &["Verb(System { call: \"ibv_poll_cq\", errno: 1 })"],
        "it says no errno but a negative number, which stands in its place",
    ),
    (
        "rdma_connect",
        &[1],
        &[FIRST_UNREACHABLE],
        "called when the address is resolved, and an event has no room for errors",
    ),
    ("rdma_connect", &[2], &[SECOND_UNREACHABLE], "as the first"),
    (
        "rdma_resolve_route",
        &[1],
        &[FIRST_UNREACHABLE],
        "as rdma_connect",
    ),
    (
        "rdma_resolve_route",
        &[2],
        &[SECOND_UNREACHABLE],
        "as rdma_connect",
    ),
    (
        "rdma_establish",
        &[1],
        &[FIRST_UNREACHABLE],
        "as rdma_connect",
    ),
    (
        "rdma_init_qp_attr",
        &[1, 2],
        &["Verb(UnknownHandle(\"connection request\"))"],
        "of a request whose peer has gone away meanwhile nothing else is said",
    ),
    (
        "rdma_notify",
        &[1],
        &[TIMED_OUT],
        "then the word is missing whose place it takes",
    ),
    (
        "rdma_disconnect",
        &[1, 2],
        &["done"],
        "the end of the identifier says it too",
    ),
];

const FIRST_UNREACHABLE: &str = "Event(Connection(Unreachable { queue_pair: QueuePair { index: 0, \
                                 generation: 1 }, reason: Failed }))";
const SECOND_UNREACHABLE: &str = "Event(Connection(Unreachable { queue_pair: QueuePair { index: 1, \
                                  generation: 1 }, reason: Failed }))";
const TIMED_OUT: &str = "Event(Connection(Unreachable { queue_pair: QueuePair { index: 0, \
                         generation: 1 }, reason: TimedOut }))";

/// All but functions without a result and one that fails for a null pointer alone.
pub(crate) fn can_fail(function: &str) -> bool {
    ![
        "ibv_ack_async_event",
        "ibv_ack_cq_events",
        "ibv_free_device_list",
        "rdma_ack_cm_event",
        "rdma_destroy_event_channel",
    ]
    .contains(&function)
}

/// What is only called in Drop, which says nothing, or not looked at.
pub(crate) const AT_THE_END: [&str; 3] = [
    "ibv_close_device",
    "ibv_destroy_comp_channel",
    // The end of the identifier says it too.
    "rdma_disconnect",
];

/// What may be left when a function that ends something has failed: that, and what it stands on.
pub(crate) fn may_be_left(function: &str) -> &'static [&'static str] {
    let found = DESTRUCTIONS.iter().find(|(name, _)| *name == function);
    found.map_or(&[], |(_, kinds)| kinds)
}

const DESTRUCTIONS: [(&str, &[&str]); 9] = [
    ("ibv_close_device", &["context"]),
    ("ibv_dealloc_pd", &["domain", "context"]),
    ("ibv_dereg_mr", &["region", "domain", "context"]),
    ("ibv_dealloc_mw", &["window", "domain", "context"]),
    (
        "ibv_destroy_comp_channel",
        &["completion-channel", "context"],
    ),
    (
        "ibv_destroy_cq",
        &["completion-queue", "completion-channel", "context"],
    ),
    (
        "ibv_destroy_srq",
        &["shared-receive-queue", "domain", "context"],
    ),
    (
        "ibv_destroy_qp",
        &[
            "queue-pair",
            "shared-receive-queue",
            "completion-queue",
            "completion-channel",
            "domain",
            "context",
        ],
    ),
    ("rdma_destroy_id", &["cm-id", "cm-channel"]),
];

/// Events of `enum rdma_cm_event_type` that get lost, and how the scenario may end then.
pub(crate) const SILENCES: [(u32, &str); 6] = [
    // Addresses, routes and answers are waited for by the provider.
    (0, TIMED_OUT),
    (2, TIMED_OUT),
    // A request that the listener is not told of.
    (4, TIMED_OUT),
    // An answer.
    (5, TIMED_OUT),
    // The acceptor's word, in whose place it is told of the data that came.
    (9, "done"),
    // Without it nothing is known of a peer's end: who is alive is what the fabric asks.
    (10, "Never(\"both sides have parted\")"),
];

/// What is missing, and a part of what is said about it.
pub(crate) fn lacks() -> Vec<(Fault, &'static str)> {
    vec![
        (Fault::devices(0), "NoSuchDevice"),
        (
            Fault::of("ibv_get_device_list", 1, ENOSYS, 1),
            "ibv_get_device_list",
        ),
        (
            Fault::of("ibv_open_device", 1, EACCES, 1),
            "PermissionDenied",
        ),
        (
            Fault::of("rdma_create_event_channel", 1, EACCES, 1),
            "PermissionDenied",
        ),
        (Fault::of("rdma_bind_addr", 1, ENODEV, 1), "NoDeviceAt"),
        (
            Fault::of("rdma_bind_addr", 1, EADDRNOTAVAIL, 1),
            "NoDeviceAt",
        ),
        (Fault::of("ibv_reg_mr", 1, ENOMEM, 1), "ulimit -l"),
        (Fault::of("ibv_create_qp", 1, ENOMEM, 1), "ibv_create_qp"),
        (Fault::of("rdma_listen", 1, EADDRINUSE, 1), "AddressInUse"),
    ]
}

const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const ENOSYS: i32 = 38;
const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;
