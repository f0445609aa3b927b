// @ts-nocheck
// PyTorch on the devices of a lab: a rank on each, under the same quotas and over the same links.

import { spawn, spawnSync } from 'node:child_process';
import { commandOn, endDevices } from '../../dist/lab/lab.js';

const script = new URL('../../bench/lab_pytorch.py', import.meta.url).pathname;

/** Why PyTorch cannot be run by this interpreter, or undefined. */
export function missingPyTorch(python) {
  if (python === undefined) return 'no --python was given';
  const { status, stderr, error } = spawnSync(
    python,
    ['-c', 'import torch, torchvision, torch.distributed.pipelining'],
    { encoding: 'utf8' },
  );
  return status === 0
    ? undefined
    : `${python} has no torch and torchvision (${(error?.message ?? stderr).trim().split('\n').at(-1)})`;
}

/** Milliseconds of each round, the warm-up left out. */
export async function runPyTorch(lab, python, job, { warmUp, rounds }) {
  const { devices } = lab.layout;
  const full = { ...job, world: devices.length, master: devices[0].address, rounds: warmUp + rounds };
  const ends = devices.map(({ name }, rank) => {
    const [program, ...args] = commandOn(lab, name, [python, script, JSON.stringify({ ...full, rank })]);
    const child = spawn(program, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, OMP_NUM_THREADS: '1' },
    });
    let [printed, errors] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text) => (printed += text));
    child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
    return new Promise((resolve, reject) => {
      child.once('close', (code) =>
        code === 0
          ? resolve(printed)
          : reject(new Error(`PyTorch on ${name} ended with ${code}: ${errors.slice(-1500)}`)),
      );
    });
  });
  try {
    const [first] = await Promise.all(ends);
    const { torch, roundMs } = JSON.parse(first);
    return { torch, roundMs: roundMs.slice(warmUp) };
  } finally {
    await endDevices(lab);
  }
}

/** A profile whose layers are the blocks by which PyTorch can be cut: `features.0` to `features.18`, and the head. */
export function byBlocks(profile) {
  const blockOf = (name) => /^features\.\d+/.exec(name)?.[0] ?? 'head';
  const ends = profile.layers.flatMap(({ name }, index) =>
    index + 1 === profile.layers.length || blockOf(profile.layers[index + 1].name) !== blockOf(name) ? [index + 1] : [],
  );
  const merged = (row) => ends.map((end, block) => row.slice(ends[block - 1] ?? 0, end).reduce((a, b) => a + b, 0));
  const devices = Object.fromEntries(
    Object.entries(profile.devices).map(([name, { forwardMs, backwardMs, stepMs }]) => [
      name,
      {
        forwardMs: forwardMs.map(merged),
        backwardMs: backwardMs.map(merged),
        ...(stepMs && { stepMs: stepMs.map(merged) }),
      },
    ]),
  );
  return { profile: { ...profile, layers: ends.map((end) => profile.layers[end - 1]), devices }, ends };
}
