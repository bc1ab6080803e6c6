//! Shortening a failing list of operations by leaving operations out (delta debugging).

use std::time::{Duration, Instant};

/// The shortest list found within `budget` for which `fails` is still true.
pub fn shrink<T: Clone>(steps: &[T], budget: Duration, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let (start, mut best) = (Instant::now(), steps.to_vec());
    let mut chunk = best.len().div_ceil(2);
    while chunk > 0 && start.elapsed() < budget {
        let (mut at, mut shorter) = (0, false);
        while at < best.len() && start.elapsed() < budget {
            let mut attempt = best.clone();
            attempt.drain(at..(at + chunk).min(best.len()));
            if fails(&attempt) {
                (best, shorter) = (attempt, true);
            } else {
                at += chunk;
            }
        }
        if chunk == 1 && !shorter {
            break;
        }
        chunk = if chunk == 1 { 1 } else { chunk / 2 };
    }
    best
}
