use super::*;

fn machine() -> Machine {
    Machine {
        model: Model::Pc,
        cpus: 1,
        memory: 1 << 30,
        nodes: None,
        icount: false,
        kvm: false,
        disks: Vec::new(),
        kernel_options: Vec::new(),
        more: Vec::new(),
    }
}

/// The values of an option.
fn values(machine: &Machine, option: &str) -> Vec<String> {
    let channels = Channels { kernel: "k".as_ref(), archive: "a".as_ref(), log: "/log", has_keys: false };
    let all = machine.arguments(&channels, &["/bin/a".into(), "b c".into()]);
    let pairs = all.windows(2).filter(|pair| pair[0] == option);
    pairs.map(|pair| pair[1].to_str().expect("text").to_owned()).collect()
}

#[test]
fn nodes_share_memory_and_cpus() {
    let machine = Machine { nodes: Some(3), cpus: 4, memory: 100 << 20, ..machine() };
    assert_eq!(machine.check().map_err(|error| error.to_string()), Ok(()));
    assert_eq!(
        values(&machine, "-numa"),
        [
            "node,nodeid=0,memdev=memory0,cpus=0-0",
            "node,nodeid=1,memdev=memory1,cpus=1-1",
            "node,nodeid=2,memdev=memory2,cpus=2-3",
            "dist,src=0,dst=1,val=20",
            "dist,src=0,dst=2,val=20",
            "dist,src=1,dst=2,val=20",
        ]
    );
    let sizes = values(&machine, "-object");
    assert!(
        sizes[0].ends_with("size=33M") && sizes[1].ends_with("size=33M") && sizes[2].ends_with("size=34M")
    );
    // More nodes than CPUs: some have memory alone.
    let machine = Machine { cpus: 1, ..machine };
    assert_eq!(
        values(&machine, "-numa")[..2],
        ["node,nodeid=0,memdev=memory0", "node,nodeid=1,memdev=memory1"]
    );
}

#[test]
fn options_come_before_the_words() {
    assert_eq!(values(&machine(), "-append"), ["-- /bin/a b c"]);
    let machine = Machine { kernel_options: vec!["a=1".into(), "b=2".into()], ..machine() };
    assert_eq!(values(&machine, "-append"), ["a=1 b=2 -- /bin/a b c"]);
}

#[test]
fn commas_in_names_are_doubled() {
    let machine = Machine { disks: vec!["/a,b".into(), "c:d".into()], ..machine() };
    assert_eq!(values(&machine, "-drive")[0], "if=none,format=raw,id=disk0,file=/a,,b");
    // What precedes a colon would be a protocol.
    let second = &values(&machine, "-drive")[1];
    assert!(second.contains(",file=/") && second.ends_with("/c:d"), "{second}");
    assert_eq!(
        values(&machine, "-device")[2..],
        ["virtio-blk-pci,drive=disk0", "virtio-blk-pci,drive=disk1"]
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |machine: Machine| machine.check().map_err(|error| error.exit_code()) == Err(2);
    assert!(refused(Machine { icount: true, cpus: 2, ..machine() }));
    assert!(refused(Machine { model: Model::Microvm, nodes: Some(2), ..machine() }));
    assert!(refused(Machine { memory: 4096, ..machine() }));
    assert!(refused(Machine { memory: 2 << 20, nodes: Some(4), ..machine() }));
    assert!(!refused(Machine { icount: true, ..machine() }));
    for wrong in ["a", "=1", "a=b c", "a=\t"] {
        assert!(parse_kernel_option(wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(parse_kernel_option("fail-nth=100"), Ok("fail-nth=100".to_owned()));
}
