//! The page allocator with interrupts that allocate and free themselves, at any instruction of any operation.

mod toy;
mod world;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{Hosted, InterruptPlan, Interrupted};
use oracle::lockstep::{budget, given_seed, in_time, long, seeds};
use quire::cpu::CpuId;
use quire::page_alloc::{Gfp, ListGuard};
use quire::platform::{Context, FramePlatform};
use world::{Act, Call, GUARDS, Stash, World, machine, order};

const CPU0: CpuId = CpuId(0);
const SOFT: Context = Context::SoftInterrupt;
const HARD: Context = Context::HardInterrupt;

/// Operations with more steps than this are sampled: stepping through all of them, to each of them, grows as the square.
fn short() -> u64 {
    if long() { 2000 } else { 400 }
}

/// Soft interrupts in one operation of which each step is followed, as the host takes its time for a step.
const MOST_NESTED: u32 = 6;

/// One CPU's task and the interrupts on top of it, each with folios of its own.
struct Scene<'w, 'm> {
    machine: &'m Hosted,
    world: &'w World<'m>,
    stashes: [Stash; 3],
}

impl<'w, 'm> Scene<'w, 'm> {
    /// With some folios of each order in each context's hands, and some on the lists.
    fn new(machine: &'m Hosted, world: &'w World<'m>) -> Self {
        let scene = Self { machine, world, stashes: [const { 0 }; 3].map(|_| Stash::new()) };
        for stash in &scene.stashes {
            for (number, count) in [(0, 40), (1, 6), (2, 4), (3, 4)] {
                world.act(stash, Act::TakeMany(count), order(number), 0, true);
            }
        }
        for number in [0, 0, 0, 0, 0, 1, 2, 3] {
            world.act(&scene.stashes[0], Act::GiveMany(2), order(number), 1, true);
        }
        scene
    }

    /// What an interrupt does, drawn from its number: one call or two.
    fn handle(&self, context: Context, seed: u64) {
        let stash = &self.stashes[context as usize];
        let number = order([0, 0, 0, 1, 2, 3][(seed % 6) as usize]);
        let acts: &[Act] = match seed / 6 % 6 {
            0 => &[Act::Take],
            1 => &[Act::Give],
            2 => &[Act::Take, Act::Give],
            3 => &[Act::Give, Act::Take],
            4 => &[Act::TakeMany(5)],
            _ => &[Act::GiveMany(3)],
        };
        acts.iter().for_each(|&act| self.world.act(stash, act, number, seed / 36, false));
    }

    /// Makes a call with an interrupt as `plan` says, and checks what came of it.
    fn interrupted(
        &self,
        call: &mut Call,
        plan: InterruptPlan,
        context: Context,
        handler: impl FnMut() + Send,
    ) -> Interrupted<()> {
        let label = (call.act, call.order, plan, context);
        let base = self.machine.context();
        let gfp = if base == Context::Task { Gfp::USER } else { Gfp::ATOMIC };
        // SAFETY: handlers touch the library, the machine, and atomics that neither move nor grow.
        let ran =
            unsafe { self.machine.interrupt_at_steps(plan, context, handler, || self.world.make(call, gfp)) };
        let ran = ran.expect("the host has signals");
        self.world.book(&self.stashes[base as usize], call, base == Context::Task);
        if base == Context::Task {
            self.world.check().unwrap_or_else(|what| panic!("{what}, after {label:?}"));
        }
        ran
    }

    /// As it was before, and nothing lost.
    fn end(self) {
        self.stashes.iter().for_each(|stash| self.world.give_all(stash));
        self.world.check_end().unwrap();
    }
}

fn in_each_arm(action: impl Fn(&Hosted, ListGuard)) {
    for guard in GUARDS {
        let machine = machine(1);
        machine.run_on(CPU0, || in_time(&format!("{guard:?}"), || action(&machine, guard)));
        machine.assert_clean();
    }
}

/// An operation that is undone each time, so that it finds the lists much as they were.
fn sweep(scene: &Scene<'_, '_>, rng: &mut Rng, act: Act, number: u8) -> String {
    let (world, stash, order) = (scene.world, &scene.stashes[0], order(number));
    let interrupted = |plan, rng: &mut Rng| {
        if act == Act::Give {
            world.act(stash, Act::Take, order, 0, true);
        }
        let mut call = world.prepare(stash, act, order, 0);
        let context = if rng.bool() { SOFT } else { HARD };
        let seed = rng.u64(..);
        let ran = scene.interrupted(&mut call, plan, context, || scene.handle(context, seed));
        if act == Act::Take {
            world.act(stash, Act::Give, order, 0, true);
        }
        ran
    };
    // The first may fill a list; what it left is what the others find.
    let steps = (0..3).map(|_| interrupted(InterruptPlan::Count, rng).events).min().unwrap_or(0);
    let all = steps < short();
    // Handlers leave the lists longer or shorter, so that the number of steps changes a little.
    let chosen = (0..).take_while(|&step| step < if all { short() } else { short() / 8 });
    let mut delivered = 0;
    for step in chosen {
        let step = if all { step } else { rng.u64(0..steps) };
        let ran = interrupted(InterruptPlan::Nth(step), rng);
        if all && ran.events <= step {
            break;
        }
        assert!(ran.delivered == 1 || ran.events <= step, "{act:?} of order {number}, step {step}");
        delivered += ran.delivered;
    }
    assert!(delivered > 0);
    format!("{delivered} of {steps}")
}

/// An interrupt at each instruction of what the lists serve: one of all that interrupts do here, drawn, in short runs.
#[test]
fn an_interrupt_at_every_step_of_a_short_operation() {
    in_each_arm(|machine, guard| {
        let deadline = Instant::now() + budget(Duration::from_secs(1));
        let (world, mut rng) = (World::new(machine, guard), Rng::with_seed(7));
        let scene = Scene::new(machine, &world);
        for number in [0, 1, 3, 9, 2].into_iter().chain(std::iter::repeat(0)) {
            let [take, give] = [Act::Take, Act::Give].map(|act| sweep(&scene, &mut rng, act, number));
            println!("{guard:?}, order {number}: interrupts at {take} steps of a take, {give} of a give");
            if Instant::now() > deadline {
                break;
            }
        }
        scene.end();
    });
}

/// Draws an operation of any length and brings the lists into a state in which it is long, now and then.
fn draw(rng: &mut Rng, scene: &Scene<'_, '_>) -> Call {
    let stash = &scene.stashes[0];
    let number = order([0, 0, 0, 1, 2, 3, 9][rng.usize(0..7)]);
    match rng.u32(0..6) {
        0 => scene.world.allocator.lists().drain_local(),
        1 => scene.world.act(stash, Act::TakeMany(40), number, 0, true),
        2 => scene.world.act(stash, Act::GiveMany(48), number, 0, true),
        _ => {}
    }
    let many = rng.usize(1..40) >> if number.get() == 9 { 4 } else { 0 };
    let act = [Act::Take, Act::Give, Act::TakeMany(many), Act::GiveMany(many), Act::Drain][rng.usize(0..5)];
    scene.world.prepare(stash, act, number, rng.u64(..))
}

/// A fresh world for each seed, as many as there is time for, checked at the end of each.
fn for_each_seed(machine: &Hosted, guard: ListGuard, mut act: impl FnMut(&mut Rng, &Scene<'_, '_>)) {
    let deadline = Instant::now() + budget(Duration::from_secs(1));
    for seed in seeds(Duration::from_secs(1)) {
        println!("QUIRE_SEED={seed}");
        let world = World::new(machine, guard);
        let scene = Scene::new(machine, &world);
        act(&mut Rng::with_seed(seed), &scene);
        scene.end();
        if Instant::now() > deadline {
            break;
        }
    }
}

/// Long operations, bulk among them, at steps that the seed chooses, small ones as often as large ones.
#[test]
fn an_interrupt_at_drawn_steps_of_long_operations() {
    in_each_arm(|machine, guard| {
        let (mut calls, mut delivered, mut longest) = (0, 0, 0);
        for_each_seed(machine, guard, |rng, scene| {
            for _ in 0..12 {
                let mut call = draw(rng, scene);
                let context = if rng.bool() { SOFT } else { HARD };
                let step = 1 << rng.u32(0..13);
                let step = rng.u64(0..step);
                let handler_seed = rng.u64(..);
                let handler = || scene.handle(context, handler_seed);
                let ran = scene.interrupted(&mut call, InterruptPlan::Nth(step), context, handler);
                (calls, delivered) = (calls + 1, delivered + ran.delivered);
                longest = longest.max(ran.events);
            }
        });
        println!("{guard:?}: {calls} calls, {delivered} interrupts, up to step {longest}");
        assert!(2 * delivered > calls, "most calls have as many steps");
    });
}

/// Interrupts again and again in one operation, and hard ones at the steps of the soft ones' own operations.
#[test]
fn interrupts_on_top_of_interrupts() {
    in_each_arm(|machine, guard| {
        let (soft, hard) = (AtomicU64::new(0), AtomicU64::new(0));
        for_each_seed(machine, guard, |rng, scene| {
            for _ in 0..2 {
                let mut call = draw(rng, scene);
                let plan = [
                    InterruptPlan::Every(rng.u64(1..200)),
                    InterruptPlan::Seeded { seed: rng.u64(..), one_in: 30 },
                    InterruptPlan::Nth(rng.u64(0..300)),
                ][rng.usize(0..3)];
                let inner = InterruptPlan::Seeded { seed: rng.u64(..), one_in: rng.u64(20..200) };
                let (mut numbers, mut left) = (rng.fork(), MOST_NESTED);
                let on_soft = || {
                    if left == 0 {
                        return;
                    }
                    left -= 1;
                    let count = soft.fetch_add(1, Relaxed);
                    let act = [Act::Take, Act::Give, Act::TakeMany(4), Act::GiveMany(4)][count as usize % 4];
                    let which = numbers.u64(..);
                    let number = order([0, 1, 3][which as usize % 3]);
                    let mut call = scene.world.prepare(&scene.stashes[1], act, number, which);
                    let on_hard = || scene.handle(HARD, which.wrapping_add(hard.fetch_add(1, Relaxed)));
                    scene.interrupted(&mut call, inner, HARD, on_hard);
                };
                scene.interrupted(&mut call, plan, SOFT, on_soft);
            }
        });
        let (soft, hard) = (soft.into_inner(), hard.into_inner());
        println!("{guard:?}: {soft} soft interrupts, {hard} hard ones on top of them");
        // A single seed makes two calls.
        assert!(soft > 5 && hard > 5 || given_seed().is_some());
    });
}

/// Two CPUs at once, each with a timer's interrupts, on the same blocks.
#[test]
fn two_cpus_with_interrupts_as_time_goes_by() {
    for guard in GUARDS {
        let machine = machine(2);
        let world = machine.run_on(CPU0, || World::new(&machine, guard));
        let deadline = Instant::now() + budget(Duration::from_secs(1));
        let run = |cpu: CpuId| {
            let scene = Scene::new(&machine, &world);
            let mut rng = Rng::with_seed(u64::from(cpu.0));
            let mut numbers = rng.fork();
            let context = if cpu == CPU0 { SOFT } else { HARD };
            let handler = || scene.handle(context, numbers.u64(..));
            let work = || {
                while Instant::now() < deadline {
                    for _ in 0..50 {
                        let number = order([0, 0, 0, 1, 2, 3][rng.usize(0..6)]);
                        let acts = [Act::Take, Act::Give, Act::TakeMany(9), Act::GiveMany(9), Act::Drain];
                        let most = if rng.u32(0..9) == 0 { 5 } else { 4 };
                        let act = acts[rng.usize(0..most)];
                        world.act(&scene.stashes[0], act, number, rng.u64(..), false);
                    }
                }
            };
            // SAFETY: the handler touches the library, the machine, atomics, and a generator of its own.
            let ran = unsafe { machine.with_interrupts(Duration::from_micros(150), context, handler, work) };
            scene.stashes.iter().for_each(|stash| world.give_all(stash));
            world.allocator.lists().drain_local();
            ran.expect("a timer").delivered
        };
        let delivered = in_time(&format!("{guard:?}"), || machine.spawn_cpus(2, run));
        println!("{guard:?}: {delivered:?} interrupts");
        machine.run_on(CPU0, || world.check_end().unwrap());
        assert!(delivered.iter().all(|&count| count > 20));
    }
}
