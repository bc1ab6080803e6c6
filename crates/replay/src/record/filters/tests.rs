use super::*;

/// Evaluates a filter as the kernel does: from the left, and no further than needed. Counts comparisons.
struct Evaluation<'a> {
    rest: &'a str,
    id: u64,
    compared: usize,
}

impl Evaluation<'_> {
    fn of(filter: &str, id: u64) -> (bool, usize) {
        let mut evaluation = Evaluation { rest: filter, id, compared: 0 };
        let matched = evaluation.either(true);
        assert_eq!(evaluation.rest, "", "{filter}");
        (matched, evaluation.compared)
    }

    fn takes(&mut self, word: &str) -> bool {
        let rest = self.rest.strip_prefix(word);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// `counts` is false in a part that needs no look.
    fn either(&mut self, counts: bool) -> bool {
        let mut matched = self.both(counts);
        while self.takes(" || ") {
            matched |= self.both(counts && !matched);
        }
        matched
    }

    fn both(&mut self, counts: bool) -> bool {
        let mut matched = self.one(counts);
        while self.takes(" && ") {
            matched &= self.one(counts && matched);
        }
        matched
    }

    fn one(&mut self, counts: bool) -> bool {
        if self.takes("(") {
            let matched = self.either(counts);
            assert!(self.takes(")"), "{}", self.rest);
            return matched;
        }
        self.compared += usize::from(counts);
        assert!(self.takes("id "), "{}", self.rest);
        let (how, rest) = self.rest.split_once(' ').expect("an operator");
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(digits);
        self.rest = rest;
        let number: u64 = number.parse().expect("a number");
        match how {
            "==" => self.id == number,
            "<" => self.id < number,
            "<=" => self.id <= number,
            ">=" => self.id >= number,
            _ => panic!("{how}"),
        }
    }
}

/// A list in a row needs up to 60 comparisons, two times for each call of the program, recorded or not.
#[test]
fn a_call_is_told_from_others_by_few_comparisons() {
    let is_recorded =
        |id| id >= abi::X32 || abi::native_numbers().chain(abi::i386_numbers()).any(|number| number == id);
    let (entries, exits) = of_calls();
    for id in (0..1000).chain([abi::X32 - 1, abi::X32, abi::X32 | 520]) {
        let (enters, compared) = Evaluation::of(&entries, id);
        let (leaves, compared_again) = Evaluation::of(&exits, id);
        assert_eq!((enters, leaves), (is_recorded(id) && id != abi::OLD_MMAP, is_recorded(id)), "{id}");
        assert!(compared.max(compared_again) <= 14, "{id}: {compared}, {compared_again}");
    }
    // The kernel copies no more than a page.
    assert!(exits.len() < 4096, "{}", exits.len());
}
