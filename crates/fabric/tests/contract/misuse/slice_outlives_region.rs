//! A slice cannot leave the function that its region ends with.

use legato_fabric::{Fabric, Region, RegionSlice};
use legato_verbs::{AccessFlags, Provider, VerbsError};

pub fn slice<'region>(
    fabric: &Fabric<RegionSlice<'region>>,
    provider: &mut dyn Provider,
    _place: &'region mut Option<Region>,
) -> Result<RegionSlice<'region>, VerbsError> {
    let access = AccessFlags::LOCAL_WRITE;
    let new = Region::allocate(provider, fabric.domain(), 4096, access)?;
    let mut region = new;
    region.slice()
}

fn main() {}
