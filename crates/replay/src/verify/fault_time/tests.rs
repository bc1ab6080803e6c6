use super::*;

#[test]
fn samples_in_faults_are_counted_by_run() {
    let at = Duration::from_millis;
    let runs = [(at(1000), at(2000)), (at(3000), at(4000)), (at(5000), at(6000))];
    let chain = |functions: &[&str]| {
        functions.iter().map(|name| format!("\tffffffff81 {name}\n")).collect::<String>() + "\n"
    };
    let fault = chain(&["clear_page_erms", "exc_page_fault", ENTRY, "elf_load", ENTRY]);
    let call = chain(&["unmap_vmas", "entry_SYSCALL_64_after_hwframe"]);
    let sample = |seconds: &str, chain: &str| format!("{seconds}: \n{chain}");
    let text = [
        sample("0.999999999", &fault),
        sample("1.000000000", &fault),
        sample("1.500000000", &call),
        sample("1.600000000", &fault),
        sample("2.500000000", &fault),
        sample("3.100000000", &call),
        sample("5.999999999", &fault),
        sample("6.000000001", &fault),
    ];
    assert_eq!(in_faults(text.concat().as_bytes(), &runs).unwrap(), [2, 0, 1]);
    assert_eq!(in_faults("".as_bytes(), &runs).unwrap(), [0, 0, 0]);
    assert!(in_faults("no time:\n".as_bytes(), &runs).is_ok(), "no sample");
    assert!(in_faults("never:\n".as_bytes(), &runs).is_err());
}
