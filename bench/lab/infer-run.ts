// `asteroid infer` on the devices of a lab, with a given plan or one that it makes there.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Cluster, PlanLayout, Profile } from '../../dist/cluster/cluster.js';
import { buildModel } from '../../dist/models/zoo.js';
import type { JsonEvent } from './events.ts';
import type { Testbed } from './testbed.ts';
import { between, type Counters, counters } from './watch.ts';

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
  /** Processor time of each device, a millisecond of time, while samples were computed; absent for a short run. */
  readonly coresUsed?: Readonly<Record<string, number>>;
}

/** From a device's first sample on the processor's clock and caches settle; a look costs some processor time. */
const [settleMs, lookMs] = [4_000, 3_000];

/** Looks at the processor time of devices while samples are computed, from `begin` on. */
class CoresWatch {
  readonly #bed: Testbed;
  #timer: NodeJS.Timeout | undefined;
  #first: Counters | undefined;
  #last: Counters | undefined;

  constructor(bed: Testbed) {
    this.#bed = bed;
  }

  begin(): void {
    this.#timer ??= setTimeout(() => {
      this.#look();
      this.#timer = setInterval(() => this.#look(), lookMs);
    }, settleMs);
  }

  #look(): void {
    const found = counters(this.#bed.lab);
    if (Object.values(found.usedMs).some(Number.isNaN)) return; // a device's processes have ended
    this.#first ??= found;
    this.#last = found;
  }

  end(): Pick<InferRun, 'coresUsed'> {
    clearInterval(this.#timer);
    const [first, last] = [this.#first, this.#last];
    if (first === undefined || last === undefined || last === first) return {};
    return { coresUsed: between(this.#bed.lab, first, last, []).coresUsed };
  }
}

type DoneEvent = { readonly event: 'done'; readonly samplesPerS: number };

/** Of so many made up samples, a quarter is test data, over which a model infers. */
const testPart = 4;

/** Runs `asteroid infer` over so many made up samples. Rejects if it fails. */
export async function inferIn(
  bed: Testbed,
  model: string,
  sampleCount: number,
  args: readonly string[],
): Promise<InferRun> {
  const { shape } = buildModel(model, { initialize: false }).input;
  const data = `synthetic:${shape.join('x')}:10:${testPart * sampleCount}`;
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
  const watch = new CoresWatch(bed);
  createInterface({ input: child.stdout }).on('line', (line) => {
    lines.push(line);
    const event: JsonEvent | DoneEvent = JSON.parse(line);
    if (event.event === 'profile') found.profile ??= event.profile;
    if (event.event === 'cluster') found.cluster ??= event.cluster;
    if (event.event === 'activation-bits') found.bits = { ...found.bits, [`${event.from}->${event.to}`]: event.bits };
    if (event.event === 'phase' && event.phase === 'training') watch.begin();
    if (event.event === 'done') found.samplesPerS = (event as DoneEvent).samplesPerS;
  });
  const code = await new Promise((resolve) => child.once('close', resolve));
  const used = watch.end();
  if (code === 0) return { ...found, ...used };
  throw new Error(
    `infer ${args.join(' ')} ended with ${String(code)}: ${errors.slice(-2000)}${lines.slice(-3).join('\n')}`,
  );
}

/** The flags of a plan, written for one run. */
export function planFlags(bed: Testbed, plan: PlanLayout): readonly string[] {
  return ['--plan', bed.writePlan(plan)];
}
