//! The bytes of a region are given out again when nobody has them any more.

use legato_fabric::Region;
use legato_verbs::Provider;

pub fn end(mut region: Region, provider: &mut dyn Provider) {
    let one = region.slice().unwrap();
    let _ = one.read(provider, 0, &mut [0; 8]);
    drop(one);
    let other = region.slice().unwrap();
    let _ = other.read(provider, 0, &mut [0; 8]);
}
