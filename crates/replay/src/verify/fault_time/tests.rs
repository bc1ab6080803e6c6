use super::*;

#[test]
fn the_share_of_faults_is_read() {
    let report = "#\n# Samples: 658  of event 'cpu-clock:k'\n# Event count (approx.): 131600000\n#\n\
                  # Overhead  Parent symbol     \n    81.61%  asm_exc_page_fault\n    18.39%  [other]           \n";
    assert_eq!(in_faults(report).unwrap(), 107_398_760);
    let none = "# Event count (approx.): 100000\n   100.00%  [other]\n";
    assert_eq!(in_faults(none).unwrap(), 0, "no sample was in a fault");
    assert!(in_faults("").is_err());
    assert!(in_faults("# Event count (approx.): 1\n  much  asm_exc_page_fault\n").is_err());
}
