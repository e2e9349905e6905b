//! A region cannot be deregistered while a piece of it is in use.

use legato_fabric::Region;
use legato_verbs::Provider;

pub fn end(mut region: Region, provider: &mut dyn Provider) {
    let slice = region.slice().unwrap();
    let _ = region.deregister(provider);
    drop(slice);
}

fn main() {}
