//! Providers that hand calls on to what is inside them.

#[doc(hidden)]
pub use alloc::vec::Vec;
#[doc(hidden)]
pub use legato_base::Time;

/// Methods of [`crate::Provider`], by their names, that only hand their arguments on: for each of them
/// the macro `$to` is called with `self.method(arguments)`.
/// `all` are all methods that are not made of others.
#[macro_export]
macro_rules! delegate {
    ($to:ident: all) => {
        $crate::delegate!($to:
            attributes resource_counts
            create_protection_domain destroy_protection_domain
            allocate_region deregister_region read_region write_region
            allocate_window next_window_key deallocate_window
            create_completion_queue create_overcommitted_completion_queue
            destroy_completion_queue poll_completion_queue arm_completion_queue
            create_shared_receive_queue destroy_shared_receive_queue post_shared_receive
            arm_shared_receive_queue query_shared_receive_queue
            create_queue_pair query_queue_pair query_attributes queue_pair_number port_address
            modify_queue_pair destroy_queue_pair prepare_remote post_send post_receive
            listen close_listener connect accept reject disconnect
            poll_event progress progress_requests set_sleeping
        );
    };
    ($to:ident: $($method:ident)+) => {
        $($crate::delegated_method!($method $to);)+
    };
}

/// One method of [`delegate`]: here are the signatures.
#[doc(hidden)]
#[macro_export]
macro_rules! delegated_method {
    (attributes $to:ident) => {
        $crate::delegated_method!($to (&self) attributes() -> $crate::DeviceAttributes);
    };
    (resource_counts $to:ident) => {
        $crate::delegated_method!($to (&self) resource_counts() -> $crate::ResourceCounts);
    };
    (create_protection_domain $to:ident) => {
        $crate::delegated_method!($to (&mut self) create_protection_domain() -> Result<$crate::ProtectionDomain, $crate::VerbsError>);
    };
    (destroy_protection_domain $to:ident) => {
        $crate::delegated_method!($to (&mut self) destroy_protection_domain(
            domain: $crate::ProtectionDomain
        ) -> Result<(), $crate::VerbsError>);
    };
    (allocate_region $to:ident) => {
        $crate::delegated_method!($to (&mut self) allocate_region(
            domain: $crate::ProtectionDomain, length: u64, access: $crate::AccessFlags
        ) -> Result<$crate::MemoryRegion, $crate::VerbsError>);
    };
    (deregister_region $to:ident) => {
        $crate::delegated_method!($to (&mut self) deregister_region(
            region: &$crate::MemoryRegion
        ) -> Result<(), $crate::VerbsError>);
    };
    (read_region $to:ident) => {
        $crate::delegated_method!($to (&self) read_region(
            region: &$crate::MemoryRegion, offset: u64, into: &mut [u8]
        ) -> Result<(), $crate::VerbsError>);
    };
    (write_region $to:ident) => {
        $crate::delegated_method!($to (&mut self) write_region(
            region: &$crate::MemoryRegion, offset: u64, from: &[u8]
        ) -> Result<(), $crate::VerbsError>);
    };
    (allocate_window $to:ident) => {
        $crate::delegated_method!($to (&mut self) allocate_window(
            domain: $crate::ProtectionDomain
        ) -> Result<$crate::RemoteKey, $crate::VerbsError>);
    };
    (next_window_key $to:ident) => {
        $crate::delegated_method!($to (&self) next_window_key(
            window: $crate::RemoteKey
        ) -> Result<$crate::RemoteKey, $crate::VerbsError>);
    };
    (deallocate_window $to:ident) => {
        $crate::delegated_method!($to (&mut self) deallocate_window(
            window: $crate::RemoteKey
        ) -> Result<(), $crate::VerbsError>);
    };
    (create_completion_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) create_completion_queue(
            entries: u32
        ) -> Result<$crate::CompletionQueue, $crate::VerbsError>);
    };
    (create_overcommitted_completion_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) create_overcommitted_completion_queue(
            entries: u32
        ) -> Result<$crate::CompletionQueue, $crate::VerbsError>);
    };
    (destroy_completion_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) destroy_completion_queue(
            queue: $crate::CompletionQueue
        ) -> Result<(), $crate::VerbsError>);
    };
    (poll_completion_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) poll_completion_queue(
            queue: $crate::CompletionQueue,
            max: usize,
            into: &mut $crate::delegate::Vec<$crate::Completion>,
        ) -> Result<usize, $crate::VerbsError>);
    };
    (arm_completion_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) arm_completion_queue(
            queue: $crate::CompletionQueue, arm: $crate::Arm
        ) -> Result<bool, $crate::VerbsError>);
    };
    (create_shared_receive_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) create_shared_receive_queue(
            domain: $crate::ProtectionDomain, capabilities: $crate::SharedReceiveQueueCapabilities
        ) -> Result<$crate::SharedReceiveQueue, $crate::VerbsError>);
    };
    (destroy_shared_receive_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) destroy_shared_receive_queue(
            queue: $crate::SharedReceiveQueue
        ) -> Result<(), $crate::VerbsError>);
    };
    (post_shared_receive $to:ident) => {
        $crate::delegated_method!($to (&mut self) post_shared_receive(
            queue: $crate::SharedReceiveQueue, request: &$crate::ReceiveRequest
        ) -> Result<(), $crate::VerbsError>);
    };
    (arm_shared_receive_queue $to:ident) => {
        $crate::delegated_method!($to (&mut self) arm_shared_receive_queue(
            queue: $crate::SharedReceiveQueue, limit: u32
        ) -> Result<(), $crate::VerbsError>);
    };
    (query_shared_receive_queue $to:ident) => {
        $crate::delegated_method!($to (&self) query_shared_receive_queue(
            queue: $crate::SharedReceiveQueue
        ) -> Result<u32, $crate::VerbsError>);
    };
    (create_queue_pair $to:ident) => {
        $crate::delegated_method!($to (&mut self) create_queue_pair(
            init: &$crate::QueuePairInit
        ) -> Result<$crate::QueuePair, $crate::VerbsError>);
    };
    (query_queue_pair $to:ident) => {
        $crate::delegated_method!($to (&self) query_queue_pair(
            queue_pair: $crate::QueuePair
        ) -> Result<$crate::QueuePairState, $crate::VerbsError>);
    };
    (query_attributes $to:ident) => {
        $crate::delegated_method!($to (&self) query_attributes(
            queue_pair: $crate::QueuePair
        ) -> Result<$crate::QueuePairAttributes, $crate::VerbsError>);
    };
    (queue_pair_number $to:ident) => {
        $crate::delegated_method!($to (&self) queue_pair_number(
            queue_pair: $crate::QueuePair
        ) -> Result<$crate::QueuePairNumber, $crate::VerbsError>);
    };
    (port_address $to:ident) => {
        $crate::delegated_method!($to (&self) port_address() -> $crate::AddressVector);
    };
    (modify_queue_pair $to:ident) => {
        $crate::delegated_method!($to (&mut self) modify_queue_pair(
            queue_pair: $crate::QueuePair,
            to: $crate::QueuePairState,
            attributes: &$crate::QueuePairAttributes,
        ) -> Result<(), $crate::VerbsError>);
    };
    (destroy_queue_pair $to:ident) => {
        $crate::delegated_method!($to (&mut self) destroy_queue_pair(
            queue_pair: $crate::QueuePair
        ) -> Result<(), $crate::VerbsError>);
    };
    (prepare_remote $to:ident) => {
        $crate::delegated_method!($to (&mut self) prepare_remote(
            queue_pair: $crate::QueuePair, key: $crate::RemoteKey
        ) -> Result<$crate::Prepared, $crate::VerbsError>);
    };
    (post_send $to:ident) => {
        $crate::delegated_method!($to (&mut self) post_send(
            queue_pair: $crate::QueuePair, request: &$crate::SendRequest
        ) -> Result<(), $crate::VerbsError>);
    };
    (post_receive $to:ident) => {
        $crate::delegated_method!($to (&mut self) post_receive(
            queue_pair: $crate::QueuePair, request: &$crate::ReceiveRequest
        ) -> Result<(), $crate::VerbsError>);
    };
    (listen $to:ident) => {
        $crate::delegated_method!($to (&mut self) listen(
            address: &$crate::Address
        ) -> Result<$crate::Listener, $crate::VerbsError>);
    };
    (close_listener $to:ident) => {
        $crate::delegated_method!($to (&mut self) close_listener(
            listener: $crate::Listener
        ) -> Result<(), $crate::VerbsError>);
    };
    (connect $to:ident) => {
        $crate::delegated_method!($to (&mut self) connect(
            queue_pair: $crate::QueuePair, address: &$crate::Address, private_data: &[u8]
        ) -> Result<(), $crate::VerbsError>);
    };
    (accept $to:ident) => {
        $crate::delegated_method!($to (&mut self) accept(
            request: $crate::ConnectionRequest, queue_pair: $crate::QueuePair, private_data: &[u8]
        ) -> Result<(), $crate::VerbsError>);
    };
    (reject $to:ident) => {
        $crate::delegated_method!($to (&mut self) reject(
            request: $crate::ConnectionRequest, private_data: &[u8]
        ) -> Result<(), $crate::VerbsError>);
    };
    (disconnect $to:ident) => {
        $crate::delegated_method!($to (&mut self) disconnect(
            queue_pair: $crate::QueuePair
        ) -> Result<(), $crate::VerbsError>);
    };
    (poll_event $to:ident) => {
        $crate::delegated_method!($to (&mut self) poll_event() -> Option<$crate::Event>);
    };
    (progress $to:ident) => {
        $crate::delegated_method!($to (&mut self) progress(
            now: $crate::delegate::Time
        ) -> $crate::delegate::Time);
    };
    (progress_requests $to:ident) => {
        $crate::delegated_method!($to (&mut self) progress_requests(
            now: $crate::delegate::Time
        ) -> $crate::delegate::Time);
    };
    (set_sleeping $to:ident) => {
        $crate::delegated_method!($to (&mut self) set_sleeping(sleeping: bool) -> bool);
    };
    ($to:ident (&self) $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty) => {
        fn $name(&self, $($argument: $type),*) -> $result {
            $to!(self.$name($($argument),*))
        }
    };
    ($to:ident (&mut self) $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty) => {
        fn $name(&mut self, $($argument: $type),*) -> $result {
            $to!(self.$name($($argument),*))
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// A method with a default that is not handed on would refuse what is inside can do.
    #[test]
    fn all_is_every_method_of_the_trait() {
        let declared: BTreeSet<&str> = include_str!("provider.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("    fn ")?.split('(').next())
            .collect();
        let here = include_str!("delegate.rs");
        let all = here.split("($to:ident: all)").nth(1).unwrap();
        let all = all.split_once("$to:\n").unwrap().1;
        let all = all.split(')').next().unwrap().split_whitespace().collect();
        // These are made of another one.
        let composed = BTreeSet::from(["modify_to_init", "modify_to_error"]);
        assert_eq!(&declared - &composed, all);
    }
}
