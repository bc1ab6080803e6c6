use super::*;

/// A list of all tags with the time of their last use.
struct Naive {
    sets: u64,
    ways: usize,
    used: Vec<(u64, u64)>,
}

impl Naive {
    fn touch(&mut self, number: u64, time: u64) -> bool {
        let set = |number: u64| number % self.sets;
        if let Some(entry) = self.used.iter_mut().find(|entry| entry.0 == number) {
            entry.1 = time;
            return true;
        }
        let rivals = self.used.iter().filter(|entry| set(entry.0) == set(number));
        if rivals.clone().count() == self.ways {
            let oldest = rivals.min_by_key(|entry| entry.1).map(|entry| entry.0);
            self.used.retain(|entry| Some(entry.0) != oldest);
        }
        self.used.push((number, time));
        false
    }
}

#[test]
fn a_table_is_a_list_by_last_use() {
    for (entries, ways) in [(1, 1), (4, 4), (8, 2), (12, 4), (96, 6), (16, 1)] {
        let mut random = fastrand::Rng::with_seed(u64::from(entries));
        let mut table = Table::new(entries, ways);
        let mut naive = Naive { sets: u64::from(entries / ways), ways: ways as usize, used: Vec::new() };
        let (mut hits, mut last) = (0, 0);
        for time in 0..20_000 {
            // Near the last one half of the time, so that there are hits and misses.
            last =
                if random.bool() { last + random.u64(0..3) } else { random.u64(0..3 * u64::from(entries)) };
            let hit = naive.touch(last, time);
            hits += u32::from(hit);
            assert_eq!(table.touch(last, last), hit, "{entries} in {ways} ways, access {time} of {last}");
        }
        assert!((1000..19_000).contains(&hits), "{hits}");
    }
}

#[test]
fn odd_sizes_are_no_error() {
    for (entries, ways) in [(0, 0), (0, 4), (1, 0), (3, 8), (7, 2)] {
        let mut table = Table::new(entries, ways);
        assert_eq!([table.touch(9, 9), table.touch(9, 9)], [false, true], "{entries} in {ways} ways");
    }
}
