//! A region can be deregistered when its pieces are gone.

use legato_fabric::Region;
use legato_verbs::Provider;

pub fn end(mut region: Region, provider: &mut dyn Provider) {
    let slice = region.slice().unwrap();
    drop(slice);
    let _ = region.deregister(provider);
}
