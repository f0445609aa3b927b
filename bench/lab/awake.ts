// @ts-nocheck
// Cores that sleep between two stops of a quota wake up slowly on many machines, and compute with a cold cache: the same work takes 1.1 to 1.2 times the processor
// time. So they are kept awake while a lab is measured.

import { execFileSync, spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

const own = fileURLToPath(import.meta.url);

/**
 * Keeps all cores awake until the function that it returns is called, or this process ends: the kernel polls instead of letting them sleep, where it can be told
 * to; elsewhere a process for each core works for nothing. Such a process, though it gives way to all other (SCHED_IDLE), is in the way: a device whose quota
 * is filled again gets the core at the next tick only, up to 4 ms later, and beside a lab of normal priority a hybrid's rounds took a fourth longer.
 */
export function keepAwake() {
  const request = requestNoLatency();
  if (request !== undefined) return () => closeSync(request);
  const workers = Array.from({ length: availableParallelism() }, () =>
    spawn(process.execPath, [own], { stdio: ['ignore', 'ignore', 'inherit'] }),
  );
  return () => workers.forEach((worker) => worker.kill());
}

/** The kernel's interface for that (power management's quality of service): it counts for as long as the file is open. */
function requestNoLatency() {
  try {
    if (readFileSync('/sys/devices/system/cpu/cpuidle/current_driver', 'utf8').trim() === 'none') return undefined;
    const file = openSync('/dev/cpu_dma_latency', 'w');
    writeSync(file, new Uint8Array(4)); // microseconds, an integer of 32 bits
    return file;
  } catch {
    return undefined; // This kernel has none.
  }
}

if (process.argv[1] === own) {
  execFileSync('chrt', ['--idle', '--pid', '0', String(process.pid)]);
  const parent = process.ppid;
  let sum = 0;
  while (process.ppid === parent) for (let index = 0; index < 1e7; index++) sum = (sum + index) | 0;
}
