//! A log-linear histogram in fixed memory: the agent records fault latencies in it without
//! allocating, and the supervisor reads it from shared memory as plain words.
//!
//! Eight sub-buckets per power of two: a quantile is at most 12.5 % above the true value. (The
//! shape is HdrHistogram's, by Gil Tene; its crate needs `std`, which the agent has not.)

/// Sub-buckets per power of two.
const SUB_BUCKETS: usize = 8;
/// Buckets: 0..8 exactly, then eight for each power of two up to 2^40 ns (18 minutes).
pub const BUCKETS: usize = SUB_BUCKETS + (40 - 3) * SUB_BUCKETS;

/// Counts per bucket, and the exact maximum.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            max: 0,
        }
    }
}

impl Histogram {
    /// Rebuilds a histogram from its words, as [`Self::counts`] and [`Self::max`] gave them.
    /// Missing buckets count as empty.
    pub fn from_parts(counts: impl IntoIterator<Item = u64>, max: u64) -> Self {
        let mut histogram = Self {
            max,
            ..Self::default()
        };
        for (bucket, count) in histogram.counts.iter_mut().zip(counts) {
            *bucket = count;
        }
        histogram
    }

    pub fn record(&mut self, value: u64) {
        self.counts[bucket_of(value)] += 1;
        self.max = self.max.max(value);
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub const fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The smallest bucket bound that at least `per_mille` thousandths of the values do not
    /// exceed; zero when nothing was recorded.
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let total = self.count();
        if total == 0 {
            return 0;
        }
        let rank = (total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(bucket).min(self.max);
            }
        }
        self.max
    }
}

fn bucket_of(value: u64) -> usize {
    if value < SUB_BUCKETS as u64 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros() as usize;
    let sub = (value >> (exponent - 3)) as usize & (SUB_BUCKETS - 1);
    (SUB_BUCKETS + (exponent - 3) * SUB_BUCKETS + sub).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64;
    }
    let exponent = (bucket - SUB_BUCKETS) / SUB_BUCKETS + 3;
    let sub = (bucket - SUB_BUCKETS) % SUB_BUCKETS;
    (((SUB_BUCKETS + sub + 1) as u64) << (exponent - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_an_eighth() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000u64 {
            histogram.record(value);
        }
        for (per_mille, exact) in [(500, 50_000), (990, 99_000), (1000, 100_000)] {
            let got = histogram.quantile(per_mille);
            assert!(
                got >= exact && got <= exact + exact / 8,
                "{per_mille}: {got}"
            );
        }
        assert_eq!(histogram.max(), 100_000);
    }

    #[test]
    fn every_value_lies_below_its_bucket_bound() {
        for shift in 0..40 {
            for value in [
                (1u64 << shift),
                (1u64 << shift) + 1,
                (1u64 << shift) * 2 - 1,
            ] {
                let bucket = bucket_of(value);
                assert!(upper_bound(bucket) >= value);
                assert!(bucket == 0 || upper_bound(bucket - 1) < value);
            }
        }
    }

    #[test]
    fn parts_give_the_same_histogram_back() {
        let mut histogram = Histogram::default();
        histogram.record(3);
        histogram.record(1 << 50);
        let copy = Histogram::from_parts(histogram.counts().iter().copied(), histogram.max());
        assert_eq!(copy.quantile(500), histogram.quantile(500));
        assert_eq!(copy.max(), 1 << 50);
    }
}
