//! A region that was deregistered has no bytes.

use legato_fabric::Region;
use legato_verbs::Provider;

pub fn end(mut region: Region, provider: &mut dyn Provider) {
    let _ = region.deregister(provider);
    let slice = region.slice().unwrap();
    let _ = slice.read(provider, 0, &mut [0; 8]);
}

fn main() {}
