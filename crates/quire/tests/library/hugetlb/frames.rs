//! The state of a frame by its number, from records alone.

use hosted::HostedConfig;
use hosted::raw::RawPages;
use quire::addr::{Frame, FrameRange, Order};
use quire::hugetlb::{HugeSize::Size1G, HugeSize::Size2M};
use quire::page_alloc::{FrameInfo, Gfp};

use crate::hugetlb::support::{BOTH, GIB, MIB, with_pools};
use crate::hugetlb::window::pages_of;

fn in_use(head: Frame, frames: u64, huge: bool) -> FrameInfo {
    FrameInfo::InUse { head, frames, huge }
}

#[test]
fn a_frame_says_what_it_is() {
    with_pools(HostedConfig::new(2 * GIB + 64 * MIB), |world| {
        let (pools, pages) = (world.pools, world.pages);
        let info = |frame: Frame| pages.frames().frame_info(frame);
        assert_eq!(info(Frame((2 * GIB + 64 * MIB) / 4096)), FrameInfo::NotMemory);
        assert_eq!(info(Frame(u64::MAX)), FrameInfo::NotMemory);
        assert_eq!(info(Frame(0)), FrameInfo::Metadata, "tables are taken from the front");
        // Small folios of each order, held or not, beside each other and beside descriptors.
        for order in 0..9 {
            let order = Order::new(order).unwrap();
            let folios: Vec<_> = (0..5).map(|_| pages.alloc_raw(Gfp::USER, order).unwrap()).collect();
            for &head in &folios {
                pages.describe(head).unwrap();
                for held in [false, true] {
                    let folio = FrameRange::folio(head, order);
                    if held {
                        pages.frames().hold(folio);
                    }
                    assert!(
                        (0..order.frames())
                            .all(|at| info(head.add(at)) == in_use(head, order.frames(), false))
                    );
                    if held {
                        assert_eq!(pages.release_raw(folio), order.frames());
                    }
                }
                assert!((0..order.frames()).all(|at| info(head.add(at)) == FrameInfo::Free));
            }
        }
        // The lists have some of these folios, in the only area that is complete.
        assert!(pages.memory_info().cached > 0);
        assert_eq!(pools.resize(pages, Size1G, BOTH, 1).after, 1);
        let page = pages_of(world, Size1G)[0];
        let ends = [0, 1, 512, 100_000, 262_143];
        assert!(ends.iter().all(|&at| info(page.add(at)) == in_use(page, 262_144, true)));
        assert_eq!(pools.demote(pages, BOTH, 1).done, 1);
        for at in ends {
            let head = page.add(at / 512 * 512);
            assert_eq!(info(page.add(at)), in_use(head, 512, true));
        }
        assert_eq!(pools.resize(pages, Size2M, BOTH, 0).after, 0);
        assert!(ends.iter().all(|&at| info(page.add(at)) == FrameInfo::Free));
        let folio = pages.alloc_raw(Gfp::USER, Order::new(11).unwrap()).unwrap();
        assert!((0..2048).step_by(511).all(|at| info(folio.add(at)) == in_use(folio, 2048, false)));
        pages.free_raw(folio, Order::new(11).unwrap()).unwrap();
    });
}
