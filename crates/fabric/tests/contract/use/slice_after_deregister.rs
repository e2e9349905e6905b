//! A region that could not be deregistered still has its bytes.

use legato_fabric::Region;
use legato_verbs::Provider;

pub fn end(region: Region, provider: &mut dyn Provider) {
    if let Err((_, mut region)) = region.deregister(provider) {
        let slice = region.slice().unwrap();
        let _ = slice.read(provider, 0, &mut [0; 8]);
    }
}
