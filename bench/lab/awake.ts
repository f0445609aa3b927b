// Cores that sleep between two stops of a quota wake up slowly on many machines, and compute with a cold cache: the
// same work takes 1.1 to 1.2 times the processor time. So they are kept awake while a lab is measured.

import { execFileSync, spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

const own = fileURLToPath(import.meta.url);

/**
 * Keeps all cores awake until the function that it returns is called, or this process ends: the kernel polls instead of
 * letting them sleep, where it takes such a request; elsewhere a process for each core works for nothing. Such a
 * process, although every other has precedence (SCHED_IDLE), is in the way: a device whose quota is filled again gets
 * the core only at the next tick, up to 4 ms later; in a lab of normal priority a hybrid's rounds took a fourth longer.
 */
export function keepAwake(): () => void {
  const request = requestNoLatency();
  if (request !== undefined) return () => closeSync(request);
  const workers = Array.from({ length: availableParallelism() }, () =>
    spawn(process.execPath, [own], { stdio: ['ignore', 'ignore', 'inherit'] }),
  );
  return () => {
    for (const worker of workers) worker.kill();
  };
}

/** The kernel's interface for it (power management's quality of service): it counts for as long as the file is open. */
function requestNoLatency(): number | undefined {
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
  let total = 0;
  while (process.ppid === parent) for (let index = 0; index < 1e7; index++) total = (total + index) | 0;
}
