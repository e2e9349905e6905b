//! A slice can leave the function if its region stays.

use legato_fabric::{Fabric, Region, RegionSlice};
use legato_verbs::{AccessFlags, Provider, VerbsError};

pub fn slice<'region>(
    fabric: &Fabric<RegionSlice<'region>>,
    provider: &mut dyn Provider,
    place: &'region mut Option<Region>,
) -> Result<RegionSlice<'region>, VerbsError> {
    let access = AccessFlags::LOCAL_WRITE;
    let new = Region::allocate(provider, fabric.domain(), 4096, access)?;
    let region = place.insert(new);
    region.slice()
}
