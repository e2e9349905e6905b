//! The calls that a provider around another one only passes on.

/// Methods of `Provider` that go to the provider in a field.
macro_rules! delegate {
    ($nic:ident) => {
        fn next_window_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
            self.$nic.next_window_key(window)
        }

        fn deallocate_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
            self.$nic.deallocate_window(window)
        }

        fn create_overcommitted_completion_queue(
            &mut self,
            entries: u32,
        ) -> Result<CompletionQueue, VerbsError> {
            self.$nic.create_overcommitted_completion_queue(entries)
        }

        fn create_shared_receive_queue(
            &mut self,
            domain: ProtectionDomain,
            capabilities: SharedReceiveQueueCapabilities,
        ) -> Result<SharedReceiveQueue, VerbsError> {
            self.$nic.create_shared_receive_queue(domain, capabilities)
        }

        fn destroy_shared_receive_queue(
            &mut self,
            queue: SharedReceiveQueue,
        ) -> Result<(), VerbsError> {
            self.$nic.destroy_shared_receive_queue(queue)
        }

        fn arm_shared_receive_queue(
            &mut self,
            queue: SharedReceiveQueue,
            limit: u32,
        ) -> Result<(), VerbsError> {
            self.$nic.arm_shared_receive_queue(queue, limit)
        }

        fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
            self.$nic.query_shared_receive_queue(queue)
        }

        fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
            self.$nic.queue_pair_number(queue_pair)
        }

        fn port_address(&self) -> AddressVector {
            self.$nic.port_address()
        }

        fn connect(
            &mut self,
            queue_pair: QueuePair,
            address: &Address,
            private_data: &[u8],
        ) -> Result<(), VerbsError> {
            self.$nic.connect(queue_pair, address, private_data)
        }

        fn reject(
            &mut self,
            request: ConnectionRequest,
            private_data: &[u8],
        ) -> Result<(), VerbsError> {
            self.$nic.reject(request, private_data)
        }
    };
}

pub(crate) use delegate;
