//! One budget for all processes of a run: `--cache`, divided among their agents.
//!
//! [`divide`] says what everyone should have: max-min fairness, so that whoever is content with
//! less than an equal part keeps what it uses, and those that want more share the rest equally.
//! [`Ledger`] gets there safely: a share counts until its holder has said that it is below a
//! smaller one, and only then somebody else is granted the difference.

use legato_base::wire::control::Usage;
use legato_base::{Bytes, timeouts};
use std::time::{Duration, Instant};

/// What every agent may use at least: its own memory (about 400 KiB), the part of a small program
/// that cannot leave, and room to move.
pub(crate) const FLOOR: u64 = Bytes::mib(1).0;
/// Kept for processes that are about to start: such a part of the cache, within bounds.
const STARTERS_PART: u64 = 32;
const STARTERS_MAX: u64 = Bytes::mib(8).0;
/// A program that is content gets such a part of its memory on top, at least and at most so much:
/// more than what its pager keeps free below the limit, or the program would be short at once.
const SLACK_PART: u64 = 8;
const SLACK_MIN: u64 = Bytes::kib(512).0;
const SLACK_MAX: u64 = Bytes::mib(8).0;
/// An agent that is not down to its smaller share after this long counts with what it has; and one
/// that has had less than its floor for so long no longer waits for others.
const CACHE_SHARE: Duration = timeouts::CACHE_SHARE.to_std();
/// And is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Differences below such a part of a share, and below this, are not worth a message.
const NOTABLE_PART: u64 = 16;
const NOTABLE_MIN: u64 = Bytes::kib(256).0;

/// What one agent wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    pub(crate) resident: u64,
    /// It cannot do with less.
    pub(crate) needed: u64,
    /// It could use any amount.
    pub(crate) pressed: bool,
    /// Address spaces behind it.
    pub(crate) spaces: u32,
}

impl Demand {
    /// Of an agent that has said nothing yet: its program is about to grow.
    const STARTING: Self = Self {
        resident: 0,
        needed: 0,
        pressed: true,
        spaces: 1,
    };

    fn floor(&self) -> u64 {
        self.needed.max(FLOOR)
    }

    fn weight(&self) -> u64 {
        u64::from(self.spaces).max(1)
    }

    fn wanted(&self) -> u64 {
        if self.pressed {
            return u64::MAX;
        }
        let slack = (self.resident / SLACK_PART).clamp(SLACK_MIN, SLACK_MAX);
        (self.resident + slack).max(self.floor())
    }

    /// What it gets if everyone gets at most `level` for each of its address spaces.
    fn at(&self, level: u64) -> u64 {
        let part = level.saturating_mul(self.weight());
        self.wanted().min(part).max(self.floor())
    }
}

impl From<Usage> for Demand {
    fn from(usage: Usage) -> Self {
        Self {
            resident: usage.resident_bytes,
            needed: usage.needed_bytes,
            pressed: usage.pressed,
            spaces: usage.spaces,
        }
    }
}

/// What is right for each of the `demands`. The sum is at most `capacity`, unless the floors alone
/// are more: then it is the floors.
pub(crate) fn divide(capacity: u64, demands: &[Demand]) -> Vec<u64> {
    let sum = |level: u64| {
        let parts = demands.iter().map(|demand| demand.at(level));
        parts.fold(0, u64::saturating_add)
    };
    // The water level: the highest that fits.
    let (mut low, mut high) = (0, capacity);
    while low < high {
        let middle = high - (high - low) / 2;
        if sum(middle) <= capacity {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let rest = capacity.saturating_sub(sum(low));
    // What nobody wants goes to those who may want it first: the big ones.
    let size = |demand: &Demand| u128::from(demand.resident) + u128::from(FLOOR);
    let sizes: u128 = demands.iter().map(size).sum();
    let share = |demand: &Demand| {
        let extra = u128::from(rest) * size(demand) / sizes.max(1);
        demand.at(low) + u64::try_from(extra).unwrap_or(0)
    };
    demands.iter().map(share).collect()
}

/// Names one agent in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccountId(u64);

#[derive(Debug)]
struct Account {
    id: AccountId,
    demand: Demand,
    /// Orders are taken only from then on.
    ready: bool,
    /// What the agent may be using.
    granted: u64,
    shrinking: Option<Shrinking>,
    /// It has had less than its floor since.
    short_since: Option<Instant>,
    /// The share that the agent was last told.
    told: u64,
}

/// The agent was told of a smaller share and is not down to it.
#[derive(Clone, Copy, Debug)]
struct Shrinking {
    to: u64,
    since: Instant,
}

impl Account {
    /// Does not shrink, or not in time.
    fn is_stuck(&self, now: Instant) -> bool {
        self.shrinking
            .is_some_and(|shrinking| now >= shrinking.since + CACHE_SHARE)
    }

    /// What it lacks of its floor.
    fn lack(&self) -> u64 {
        self.demand.floor().saturating_sub(self.granted)
    }

    fn note_lack(&mut self, now: Instant) {
        let lacks = self.lack() > 0;
        self.short_since = lacks.then(|| self.short_since.unwrap_or(now));
    }

    /// It has waited long enough for what others were to give up.
    fn is_overdue(&self, now: Instant) -> bool {
        self.short_since
            .is_some_and(|since| now >= since + CACHE_SHARE)
    }

    /// True if so much more is worth a message.
    fn is_worth(&self, gift: u64) -> bool {
        is_notable(gift, self.granted) || gift > 0 && self.lack() > 0
    }

    fn share(&self) -> u64 {
        self.shrinking
            .map_or(self.granted, |shrinking| shrinking.to)
    }
}

/// Who may use how much.
#[derive(Debug)]
pub(crate) struct Ledger {
    cache: u64,
    accounts: Vec<Account>,
    next: u64,
    resident_peak: u64,
    shortage_told: bool,
}

impl Ledger {
    pub(crate) fn new(cache: Bytes) -> Self {
        Self {
            cache: cache.0,
            accounts: Vec::new(),
            next: 0,
            resident_peak: 0,
            shortage_told: false,
        }
    }

    /// A new agent, and the share that it begins with: at once, whatever the others hold.
    pub(crate) fn open(&mut self) -> (AccountId, u64) {
        let id = AccountId(self.next);
        self.next += 1;
        let mut demands: Vec<_> = self.accounts.iter().map(|account| account.demand).collect();
        demands.push(Demand::STARTING);
        let fair = divide(self.capacity(), &demands).pop().unwrap_or(FLOOR);
        let granted = fair.min(self.unassigned()).max(FLOOR);
        self.accounts.push(Account {
            id,
            demand: Demand::STARTING,
            ready: false,
            granted,
            shrinking: None,
            short_since: None,
            told: granted,
        });
        (id, granted)
    }

    /// From now on the agent takes orders.
    pub(crate) fn handle_ready(&mut self, id: AccountId) {
        if let Some(account) = self.account(id) {
            account.ready = true;
        }
    }

    pub(crate) fn handle_usage(&mut self, id: AccountId, usage: Usage) {
        if let Some(account) = self.account(id) {
            account.demand = usage.into();
            let floor = account.demand.floor();
            // It cannot get there.
            account.shrinking = account.shrinking.filter(|shrinking| shrinking.to >= floor);
        }
        let residents = self.accounts.iter().map(|account| account.demand.resident);
        self.resident_peak = self.resident_peak.max(residents.sum());
    }

    /// The agent's memory is down to `bytes` and will not be more (P-42).
    pub(crate) fn handle_holds(&mut self, id: AccountId, bytes: u64, now: Instant) {
        let Some(account) = self.account(id) else {
            return;
        };
        // A share that was raised again meanwhile was not given up.
        let Some(shrinking) = &mut account.shrinking else {
            return;
        };
        let reached = bytes.max(shrinking.to);
        if reached < account.granted {
            account.granted = reached;
            shrinking.since = now;
        }
        if account.granted == shrinking.to {
            account.shrinking = None;
        }
    }

    /// The last share did not get through.
    pub(crate) fn handle_undelivered(&mut self, id: AccountId) {
        if let Some(account) = self.account(id) {
            account.told = 0;
        }
    }

    /// The process has ended: what it had is free.
    pub(crate) fn close(&mut self, id: AccountId) {
        self.accounts.retain(|account| account.id != id);
    }

    /// When to settle again even if nothing is heard until then.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let of_account = |account: &Account| {
            let asked = account.shrinking.map(|shrinking| shrinking.since);
            let shrunk = asked.map(|since| since + CACHE_SHARE);
            let again = asked.map(|since| since + ASK_AGAIN);
            let overdue = account.short_since.map(|since| since + CACHE_SHARE);
            [shrunk, again, overdue]
        };
        let deadlines = self.accounts.iter().flat_map(of_account).flatten();
        deadlines.filter(|&deadline| deadline > now).min()
    }

    /// The most that all agents together were seen to use.
    pub(crate) const fn resident_peak(&self) -> Bytes {
        Bytes(self.resident_peak)
    }

    /// What the agents are to be told now.
    pub(crate) fn settle(&mut self, now: Instant) -> Vec<(AccountId, u64)> {
        for account in &mut self.accounts {
            if let Some(shrinking) = &mut account.shrinking
                // P-44: the share is said again.
                && now >= shrinking.since + ASK_AGAIN
            {
                shrinking.since = now;
                account.told = 0;
            }
            account.note_lack(now);
        }
        let targets = self.targets(now);
        self.shrink(&targets, now);
        self.grow(&targets, now);
        let mut orders = Vec::new();
        for account in self.accounts.iter_mut().filter(|account| account.ready) {
            let share = account.share();
            if share != account.told {
                account.told = share;
                orders.push((account.id, share));
            }
        }
        orders
    }

    /// Once: the processes, and what they take at least, if that is more than there is.
    pub(crate) fn shortage(&mut self) -> Option<(usize, Bytes)> {
        let needs = self.accounts.iter().map(|account| account.demand.floor());
        let needs = needs.fold(0, u64::saturating_add);
        if needs <= self.cache || self.shortage_told {
            return None;
        }
        self.shortage_told = true;
        Some((self.accounts.len(), Bytes(needs)))
    }

    fn account(&mut self, id: AccountId) -> Option<&mut Account> {
        self.accounts.iter_mut().find(|account| account.id == id)
    }

    /// What is divided: the cache without what is kept for starters.
    fn capacity(&self) -> u64 {
        let starters = (self.cache / STARTERS_PART).clamp(FLOOR, STARTERS_MAX);
        self.cache.saturating_sub(starters)
    }

    fn assigned(&self) -> u64 {
        let granted = self.accounts.iter().map(|account| account.granted);
        granted.fold(0, u64::saturating_add)
    }

    fn unassigned(&self) -> u64 {
        self.cache.saturating_sub(self.assigned())
    }

    /// What each account should have. What stuck ones hold is not there to be divided.
    fn targets(&self, now: Instant) -> Vec<u64> {
        let stuck = |account: &&Account| account.is_stuck(now);
        let held: u64 = self
            .accounts
            .iter()
            .filter(stuck)
            .map(|account| account.granted)
            .sum();
        let demands: Vec<_> = self
            .accounts
            .iter()
            .filter(|account| !account.is_stuck(now))
            .map(|account| account.demand)
            .collect();
        let mut divided = divide(self.capacity().saturating_sub(held), &demands).into_iter();
        let target = |account: &Account| {
            if account.is_stuck(now) {
                return account.granted;
            }
            divided.next().unwrap_or(account.granted)
        };
        self.accounts.iter().map(target).collect()
    }

    fn shrink(&mut self, targets: &[u64], now: Instant) {
        for (account, &target) in self.accounts.iter_mut().zip(targets) {
            if !account.ready || account.is_stuck(now) {
                continue;
            }
            let share = account.share();
            if target >= account.granted {
                // It may keep what it has not given up yet.
                account.shrinking = None;
            } else if target < share && is_notable(share - target, share) {
                let asked = Shrinking {
                    to: target,
                    since: now,
                };
                account.shrinking.get_or_insert(asked).to = target;
            } else if let Some(shrinking) = &mut account.shrinking
                && target > share
                && is_notable(target - share, share)
            {
                shrinking.to = target;
            }
        }
    }

    /// Grants what is free, to those who have the least first.
    fn grow(&mut self, targets: &[u64], now: Instant) {
        let capacity = self.capacity();
        let mut free = capacity.saturating_sub(self.assigned());
        // Beside what stuck ones hold the floors alone are too much: nobody can wait for more.
        let short = targets.iter().copied().fold(0, u64::saturating_add) > capacity;
        let mut order: Vec<usize> = (0..self.accounts.len()).collect();
        order.sort_by_key(|&index| self.accounts[index].granted);
        for index in order {
            let (account, target) = (&mut self.accounts[index], targets[index]);
            let Some(missing) = target.checked_sub(account.granted) else {
                continue;
            };
            // Nobody waits for its floor behind those who are above theirs and do not shrink.
            let due = match short || account.is_overdue(now) {
                true => account.lack(),
                false => 0,
            };
            let gift = missing.min(free.max(due));
            // Who is not told of it would never have to give it back.
            if account.ready && account.shrinking.is_none() && account.is_worth(gift) {
                account.granted += gift;
                account.note_lack(now);
                free = free.saturating_sub(gift);
            }
        }
    }
}

const fn is_notable(difference: u64, of: u64) -> bool {
    difference >= NOTABLE_MIN && difference >= of / NOTABLE_PART
}

#[cfg(test)]
mod tests;
