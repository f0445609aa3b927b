// Plans on real shaped clusters of one machine, next to the simulator's prediction from the measured profile. Linux,
// root, iproute2. Each section is a file of bench/lab/.
//   npm run bench:lab -- [--json] [--section forms,links,…] [--only WORD] [--rounds N] [--warm-up SECONDS] [-o FILE]
//     [--priority normal] [--python FILE] [--caches FOLDER] [--skip-single] [--profile-each] [--profile quick]
//     [--planning SECONDS] [--plot FILE]
//
//   --section  forms,links (the default), table4, memory, together, peers, recovery, slowed, async, ftpipehd, forward,
//              infer, pipeedge, bits:
//     forms    plans of different form in the environments A, C and D (an hour, half of it for a batch of 2000)
//     links    a link that is the bottleneck; an AllReduce and its ideal time
//     table4   the lab's versions of the paper's Table 4: `best`, data parallelism, a straight pipeline (1.5 hours)
//     memory   two devices whose memory limits the planner's plan fills: peaks, and kills by the system
//     together five devices that train by themselves, one alone and all at once: what sharing this machine costs
//     peers    PyTorch's DDP and pipeline on the same devices (needs --python with torch and torchvision)
//     recovery each device lost in turn: time until training goes on, and its speed then; what copies cost
//     slowed   a link, and a device, that become slow in training: when that is noticed, and the speed then
//     async    plans whose rounds overlap beside the best others, in A, C and D (two hours)
//     forward  forward gradients on 2, 3 and 4 equal devices: AsyncFGD over FGD (25 minutes)
//     ftpipehd two equal devices and a slow one: FTPipeHD's re-partition, and a kill (its Table III; ten minutes)
//     infer    four equal devices beside one for DeiT-Small and ViT-Base, and ten plans beside what they predict
//     pipeedge the clusters of PipeEdge's Table IV with a quarter of their devices: `best`, `pipeedge`, `even`
//     bits     PipeEdge's Fig. 6: links from 120 to 5 Mbps, the bits of activations chosen while it runs
//              (of these three, --only names the model or cluster; a run takes as long as --warm-up says)
//   --only     cases whose name contains the word; sections forms, links, table4 and async take several words
//   --rounds   measured rounds of each case at most; --warm-up: how long before them (120)
//   --caches   a folder in which measured profiles stay for the next call
//   --skip-single leaves out the best single device of each group; speed-ups over it are null
//   --profile-each measures the devices anew before each form: a host that others share has another speed minutes later
//   --profile  quick: measures devices as a run does, in seconds; full (the default) takes minutes on slow devices
//   --planning how long a planner may take for each form (45)
//   --plot     throughput around the first loss of section recovery, as SVG; -o: the tables as Markdown

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { asynchronous } from './lab/async.ts';
import { forms } from './lab/forms.ts';
import { forwardGradients } from './lab/forward.ts';
import { ftpipehd } from './lab/ftpipehd.ts';
import type { Found, LabBench, Section } from './lab/group.ts';
import { bits, infer, pipeedge } from './lab/inference.ts';
import { links } from './lab/links.ts';
import { memory } from './lab/memory.ts';
import { peers } from './lab/peers.ts';
import { recovery } from './lab/recovery.ts';
import { slowed } from './lab/slowed.ts';
import { table4 } from './lab/table4.ts';
import type { Testbed } from './lab/testbed.ts';
import { together } from './lab/together.ts';

const { values: flags } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    section: { type: 'string', default: 'forms,links' },
    only: { type: 'string', default: '' },
    rounds: { type: 'string', default: '8' },
    'warm-up': { type: 'string', default: '120' },
    priority: { type: 'string', default: 'high' },
    python: { type: 'string' },
    caches: { type: 'string' },
    'skip-single': { type: 'boolean', default: false },
    'profile-each': { type: 'boolean', default: false },
    profile: { type: 'string', default: 'full' },
    planning: { type: 'string', default: '45' },
    plot: { type: 'string' },
    output: { type: 'string', short: 'o' },
  },
});

const sections: Readonly<Record<string, Section>> = {
  forms,
  links,
  table4,
  memory,
  together,
  peers,
  recovery,
  slowed,
  async: asynchronous,
  ftpipehd,
  forward: forwardGradients,
  infer,
  pipeedge,
  bits,
};

const caches = flags.caches ?? mkdtempSync(join(tmpdir(), 'asteroid-profiles-'));
if (flags.caches === undefined) process.once('exit', () => rmSync(caches, { recursive: true, force: true }));

// No lab stays behind, whatever goes wrong.
let open: Testbed | undefined;
const leave = (code: number) => void Promise.resolve(open?.close()).finally(() => process.exit(code));
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => leave(130));
process.once('uncaughtException', (error) => {
  console.error(error);
  leave(1);
});

const bench: LabBench = {
  only: flags.only,
  rounds: Number(flags.rounds),
  warmUpMs: Number(flags['warm-up']) * 1000,
  priority: flags.priority === 'normal' ? 'normal' : 'high',
  python: flags.python,
  caches,
  skipSingle: flags['skip-single'],
  profileEach: flags['profile-each'],
  thoroughness: flags.profile === 'quick' ? 'quick' : 'full',
  planningMs: Number(flags.planning) * 1000,
  plot: flags.plot,
  log: (text) => process.stderr.write(`${text}\n`),
  opened: (bed) => {
    open = bed;
  },
};

const wanted = flags.section.split(',');
const results: Record<Found['key'], object[]> = {
  cases: [],
  memory: [],
  together: [],
  peers: [],
  recovery: [],
  slowed: [],
  ftpipehd: [],
  forward: [],
  inference: [],
};
const tables: string[] = [];
for (const [name, section] of Object.entries(sections)) {
  if (!wanted.includes(name)) continue;
  const found = await section(bench);
  results[found.key].push(...found.results);
  tables.push(...found.tables);
}
const text = tables.filter((table) => table !== '').join('\n\n');
if (flags.output !== undefined) writeFileSync(flags.output, `${text}\n`);
console.log(flags.json ? JSON.stringify(results) : text);
