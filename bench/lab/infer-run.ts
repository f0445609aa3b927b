// `asteroid infer` on the devices of a lab, with a given plan or one that it makes there.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Cluster, PlanLayout, Profile } from '../../dist/cluster/cluster.js';
import { buildModel } from '../../dist/models/zoo.js';
import type { JsonEvent } from './events.ts';
import type { Testbed } from './testbed.ts';

const main = new URL('../../dist/cli/main.js', import.meta.url).pathname;

/** What a run has shown. */
export interface InferRun {
  /** From the first result on. */
  readonly samplesPerS: number;
  /** Of the devices, where they were measured. */
  readonly profile: Profile | undefined;
  readonly cluster: Cluster | undefined;
  /** The last that was said, for each link on which bits were chosen. */
  readonly bits: Readonly<Record<string, number>>;
}

type DoneEvent = { readonly event: 'done'; readonly samplesPerS: number };

/** Runs `asteroid infer` over so many made up samples. Rejects if it fails. */
export async function inferIn(
  bed: Testbed,
  model: string,
  sampleCount: number,
  args: readonly string[],
): Promise<InferRun> {
  const { shape } = buildModel(model, { initialize: false }).input;
  const data = `synthetic:${shape.join('x')}:10:${sampleCount}`;
  const own = ['infer', '--model', model, '--data', data, ...args];
  const child = spawn(process.execPath, [main, 'lab', 'run', '--name', bed.lab.layout.name, '--json', '--', ...own], {
    env: { ...process.env, ASTEROID_STATE: bed.state },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
  const found: { -readonly [Key in keyof InferRun]: InferRun[Key] } = {
    ...{ samplesPerS: Number.NaN, profile: undefined, cluster: undefined, bits: {} },
  };
  const lines: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => {
    lines.push(line);
    const event: JsonEvent | DoneEvent = JSON.parse(line);
    if (event.event === 'profile') found.profile ??= event.profile;
    if (event.event === 'cluster') found.cluster ??= event.cluster;
    if (event.event === 'activation-bits') found.bits = { ...found.bits, [`${event.from}->${event.to}`]: event.bits };
    if (event.event === 'done') found.samplesPerS = (event as DoneEvent).samplesPerS;
  });
  const code = await new Promise((resolve) => child.once('close', resolve));
  if (code === 0) return found;
  throw new Error(
    `infer ${args.join(' ')} ended with ${String(code)}: ${errors.slice(-2000)}${lines.slice(-3).join('\n')}`,
  );
}

/** The flags of a plan, written for one run. */
export function planFlags(bed: Testbed, plan: PlanLayout): readonly string[] {
  return ['--plan', bed.writePlan(plan)];
}
