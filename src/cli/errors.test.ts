// A wrong input ends in one sentence on stderr that begins with "asteroid: ", the right exit code, nothing on stdout,
// and nothing left behind.

import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { int64s, tensor } from '../graph/tensor.ts';
import { zoo } from '../models/zoo.ts';
import { ownAddresses } from '../runtime/host/addresses.ts';
import { runCommand, temporaryFolder } from '../testing/command.ts';
import { startCommandHost } from '../testing/command-host.ts';
import { onnxModel } from '../testing/onnx-models.ts';
import { writeNpy } from '../training/data/npy.ts';

const root = temporaryFolder();
const files = join(root, 'files');
const environment = { ASTEROID_CACHE: join(root, 'cache') };
const at = (name: string): string => join(files, name);

const linear = {
  opset: 17,
  inputs: [{ name: 'x', type: 'float32', shape: ['N', 4] }],
  nodes: [{ operator: 'Gemm', inputs: ['x', 'w'], outputs: ['y'] }],
  outputs: ['y'],
  initializers: {
    w: tensor(
      'float32',
      [4, 3],
      Array.from({ length: 12 }, (_, index) => index / 12),
    ),
  },
} as const;

const plan = {
  planner: 'by hand',
  schedule: '1f1b',
  batchSize: 4,
  microBatchSize: 2,
  microBatchCount: 2,
  stages: [{ layers: [0, 1], devices: ['a', 'b'], samples: [1, 1], inFlight: 1 }],
};
const profile = {
  model: 'net',
  inputBytes: 16,
  labelBytes: 8,
  layers: [{ name: 'Gemm', outputBytes: 12, weightBytes: 48, savedBytes: 16, flops: 24 }],
  batchSizes: [1],
  devices: { a: { forwardMs: [[1]], backwardMs: [[2]] }, b: { forwardMs: [[1]], backwardMs: [[2]] } },
};
const cluster = {
  devices: [
    { name: 'a', memoryMiB: 64 },
    { name: 'b', memoryMiB: 64 },
  ],
  links: { default: { bandwidthMbps: 100 } },
};

const documents: Readonly<Record<string, string | Uint8Array>> = {
  'net.onnx': onnxModel(linear),
  'cut.onnx': onnxModel(linear).subarray(0, 100),
  'text.onnx': 'This is not ONNX.\n',
  'empty.onnx': '',
  'boxes.onnx': onnxModel({
    ...linear,
    nodes: [...linear.nodes, { operator: 'NonMaxSuppression', inputs: ['y', 'y'], outputs: ['z'] }],
    outputs: ['z'],
  }),
  'branch.onnx': onnxModel({
    ...linear,
    nodes: [...linear.nodes, { operator: 'If', inputs: ['y'], outputs: ['z'] }],
    outputs: ['z'],
  }),
  'skip.onnx': onnxModel({
    ...linear,
    nodes: [...linear.nodes, { operator: 'Mul', name: 'gate', inputs: ['y', 'y'], outputs: ['z'] }],
    outputs: ['z'],
  }),
  'weightless.onnx': onnxModel({
    ...linear,
    nodes: [{ operator: 'Relu', inputs: ['x'], outputs: ['y'] }],
    initializers: {},
  }),
  'plan.json': JSON.stringify(plan),
  'plan-model.json': JSON.stringify({
    ...plan,
    stages: [{ layers: [0, 5], devices: ['a', 'b'], samples: [1, 1], inFlight: 1 }],
  }),
  'profile.json': JSON.stringify(profile),
  'cluster.json': JSON.stringify(cluster),
  'tiny.json': JSON.stringify({ ...cluster, devices: [{ name: 'a', memoryMiB: 0.00001 }] }),
  'x.npy': writeNpy(tensor('float32', [20, 4], new Array<number>(80).fill(0.5))),
  'y.npy': writeNpy(int64s(Array.from({ length: 20 }, (_, index) => index % 3))),
  'short.npy': writeNpy(int64s([0, 1, 2])),
  'high.npy': writeNpy(int64s(Array.from({ length: 20 }, (_, index) => (index === 7 ? 3 : 0)))),
  'low.npy': writeNpy(int64s(Array.from({ length: 20 }, (_, index) => (index === 19 ? -1 : 0)))),
  'wide.npy': writeNpy(tensor('float32', [20, 5], new Array<number>(100).fill(0.5))),
  'list.yaml': '- batch\n',
  'broken.yaml': 'batch: 4\nlr: [0.1\nseed: 1\n',
};

before(async () => {
  await mkdir(join(files, 'run', 'checkpoints'), { recursive: true });
  for (const [name, contents] of Object.entries(documents)) await writeFile(at(name), contents);
  await writeFile(
    at('run/config.yaml'),
    `model: ${at('net.onnx')}\ndata: npy:${at('x.npy')},${at('y.npy')}\nbatch: 4\n`,
  );
});

interface Case {
  readonly name: string;
  readonly args: readonly string[];
  readonly code?: 1 | 2;
  /** The line on stderr, after "asteroid: ". */
  readonly says: string;
}

const data = ['--data', `npy:${at('x.npy')},${at('y.npy')}`];
const model = ['--model', at('net.onnx')];
const fits = ['train', ...model, ...data, '--batch', '4', '--steps', '1', '--out', 'run'];

const host = startCommandHost(root, { ...environment, ASTEROID_STATE: '.state' });
after(() => host.close());
/** Commands that have had a case in a process of its own. */
const seen = new Set<string>();

/**
 * Runs a case in an empty folder and checks that nothing is left in it. The first case of each command has a process of
 * its own, which must end by itself.
 */
async function check({ args, code = 2, says }: Case): Promise<void> {
  const cwd = await mkdtemp(join(root, 'cwd-'));
  const [command = ''] = args;
  const isFirst = !seen.has(command);
  seen.add(command);
  const end = isFirst ? await runCommand(args, { cwd, environment }) : await host.run({ args, cwd });
  assert.equal(end.stderr, `asteroid: ${says}\n`);
  assert.equal(end.code, code);
  assert.deepEqual(await readdir(cwd, { recursive: true }), [], 'nothing is left behind');
  assert.equal(end.stdout, '');
}

/** The fix for a wrong address, on this machine. */
const dialled = ownAddresses().length === 0 ? 'use 127.0.0.1' : `give one of ${ownAddresses().join(', ')}`;

const changed = (...args: readonly string[]): readonly string[] => [...fits, ...args];

const cases: readonly Case[] = [
  {
    name: 'an unknown command',
    args: ['trian'],
    says: "unknown command 'trian' (did you mean train?): see --help for the flags and an example.",
  },
  {
    name: 'an unknown flag',
    args: changed('--batchs', '4'),
    says: "unknown option '--batchs' (did you mean --batch?): see --help for the flags and an example.",
  },
  {
    name: 'a flag without its value',
    args: ['train', '--lr'],
    says: "option '--lr <L>' argument missing: see --help for the flags and an example.",
  },
  {
    name: 'a word too many',
    args: ['train', 'net.onnx'],
    says: "too many arguments for 'train' (it takes 0, not 1): see --help for the flags and an example.",
  },
  {
    name: 'no model',
    args: ['train', ...data],
    says:
      '--model is missing: give an ONNX model, or the name of a built-in one, such as ' +
      'resnet-18:input=32,classes=10.',
  },
  {
    name: 'no data',
    args: ['train', ...model],
    says:
      '--data is missing: give images:DIR | table:FILE | text:FILE | mnist | idx:DIR | npy:INPUTS,LABELS | ' +
      'npz:FILE | csv:FILE | cifar10:DIR | tokens:FILE | synthetic:SHAPE | synthetic-tokens:LENGTH:VOCABULARY.',
  },
  {
    name: 'data of an unknown kind',
    args: ['train', ...model, '--data', 'parquet:x'],
    says:
      'The data spec "parquet:x" cannot be read: its kind is unknown; ' +
      'valid are mnist, cifar10:DIR, idx:DIR, images:DIR|FILE, npy:INPUTS,LABELS, npz:FILE, csv:FILE[,LABELCOLUMN], ' +
      'table:FILE, text:FILE, ' +
      'tokens:FILE[,BLOCKLENGTH], synthetic:SHAPE[:CLASSES[:SAMPLES]], ' +
      'synthetic-tokens:LENGTH:VOCABULARY[:CLASSES[:SAMPLES]], mix:SPEC[@SHARE]+SPEC[@SHARE].',
  },

  {
    name: 'a model that is not there',
    args: ['train', '--model', 'nowhere.onnx', ...data],
    says: 'The model nowhere.onnx cannot be read (there is no such file): check the path given to --model.',
  },
  {
    name: 'a model that is a folder',
    args: ['train', '--model', files, ...data],
    says: `${files} has no config.json: give the folder of a checkout, with config.json and model.safetensors.`,
  },
  {
    name: 'an unknown built-in model',
    args: ['train', '--model', 'digit', ...data],
    says:
      `There is no built-in model "digit" (there are: ${zoo.map(({ name }) => name).join(', ')}); ` +
      'give the path of an .onnx file.',
  },
  {
    name: 'a model that is text',
    args: ['train', '--model', at('text.onnx'), ...data],
    says: `${at('text.onnx')}: The 18 bytes are not a complete ONNX model; export or copy the file again.`,
  },
  {
    name: 'an empty model',
    args: ['train', '--model', at('empty.onnx'), ...data],
    says: `${at('empty.onnx')}: The 0 bytes are not an ONNX model, or it is empty: there is no graph in it.`,
  },
  {
    name: 'a truncated model',
    args: ['train', '--model', at('cut.onnx'), ...data],
    says: `${at('cut.onnx')}: The 100 bytes are not a complete ONNX model; export or copy the file again.`,
  },
  {
    name: 'an operator that is not supported',
    args: ['train', '--model', at('boxes.onnx'), ...data],
    says: 'Operator NonMaxSuppression (node "node1") is not supported; docs/operators.md lists the operators that are.',
  },
  {
    name: 'a branch',
    args: ['train', '--model', at('branch.onnx'), ...data],
    says:
      'Operator If (node "node1") is not supported; its condition depends on data; ' +
      'export the model without control flow, for shapes that are known; ' +
      'docs/operators.md lists the operators that are.',
  },
  {
    name: 'a model without weights',
    args: ['train', '--model', at('weightless.onnx'), ...data],
    says:
      `${at('weightless.onnx')} holds no weights that could be trained: ` +
      'export the model with its weights as float32 initializers.',
  },

  {
    name: 'data that are not there',
    args: ['train', ...model, '--data', 'npy:a.npy,b.npy'],
    says: 'a.npy cannot be read: there is no such file or folder; check the path and its permissions.',
  },
  {
    name: 'data that are not arrays',
    args: ['train', ...model, '--data', `npy:${at('text.onnx')},${at('y.npy')}`],
    says:
      `${at('text.onnx')} is not a valid npy file: at byte 0 the mark "\\x93NUMPY" is missing; ` +
      'write or download it again.',
  },
  {
    name: 'a label too high',
    args: ['train', ...model, '--data', `npy:${at('x.npy')},${at('high.npy')}`],
    says:
      `The label 3 at row 7 of ${at('high.npy')} is outside 0…2: the model has 3 outputs; ` +
      'correct the labels, take a model with more outputs, or leave such labels out with --ignore-label 3.',
  },
  {
    name: 'a label below 0',
    args: ['train', ...model, '--data', `npy:${at('x.npy')},${at('low.npy')}`],
    says:
      `The label -1 at row 19 of ${at('low.npy')} is outside 0…2: the model has 3 outputs; ` +
      'correct the labels, take a model with more outputs, or leave such labels out with --ignore-label -1.',
  },
  {
    name: 'an output that the model does not have',
    args: ['train', ...model, '--data', `npy:${at('x.npy')},${at('y.npy')}`, '--output', 'logits'],
    says: '--output logits is not an output of the model: it has y.',
  },
  {
    name: 'eval with a label to leave out that is no number',
    args: ['eval', ...model, '--data', `npy:${at('x.npy')},${at('y.npy')}`, '--ignore-label', 'void'],
    says: '--ignore-label void must be a whole number.',
  },
  {
    name: 'fewer labels than inputs',
    args: ['train', ...model, '--data', `npy:${at('x.npy')},${at('short.npy')}`],
    says: `${at('x.npy')} has 20 samples, but ${at('short.npy')} has 3 labels; both need one row a sample.`,
  },
  {
    name: 'inputs of another shape',
    args: ['train', ...model, '--data', `npy:${at('wide.npy')},${at('y.npy')}`],
    says:
      `${at('wide.npy')} has the shape [N, 5], but the model's input x takes [N, 4]; ` +
      'reshape the array or choose another model.',
  },
  {
    name: 'test data of another shape',
    args: changed('--eval-data', `npy:${at('wide.npy')},${at('y.npy')}`),
    says:
      `${at('wide.npy')} has the shape [N, 5], but the model's input x takes [N, 4]; ` +
      'reshape the array or choose another model.',
  },
  {
    name: 'a batch larger than the data',
    args: changed('--batch', '21'),
    says: 'The batch size 21 is larger than the data (20 samples); choose --batch 20 or less.',
  },

  { name: 'a negative learning rate', args: changed('--lr', '-0.1'), says: '--lr -0.1 must not be negative.' },
  {
    name: 'an unknown planner',
    args: changed('--planner', 'magic'),
    says:
      'There is no planner "magic"; use one of best, asteroid, single, dp, straight, gpipe, pipedream, dapple, ' +
      'hetpipe, pipeedge, ftpipehd, exhaustive.',
  },
  {
    name: 'an unknown schedule',
    args: changed('--schedule', '2f2b'),
    says: 'There is no schedule "2f2b"; use one of 1f1b, gpipe, zb-h1, 1f1b-overlap, zb-h1-overlap, auto.',
  },
  {
    name: 'an unknown learning-rate schedule',
    args: changed('--lr-schedule', 'sawtooth'),
    says:
      'The learning-rate schedule "sawtooth" is not known; ' +
      'write constant, step:EVERY:FACTOR, cosine or linear, each with :warmup=ROUNDS if wanted.',
  },
  {
    name: 'frozen parameters that are not there',
    args: changed('--freeze', 'head.*'),
    says: '--freeze head.* matches no parameter: the model has w.',
  },
  {
    name: 'the only trained parameters that are not there',
    args: changed('--freeze-all-but', 'head.*'),
    says: '--freeze-all-but head.* matches no parameter: the model has w.',
  },
  {
    name: 'a classifier of one class',
    args: changed('--head-classes', '1'),
    says: '--head-classes 1 must be at least 2.',
  },
  {
    name: 'a new classifier for a model without one',
    args: [...changed('--head-classes', '5').map((word) => (word === at('net.onnx') ? at('skip.onnx') : word))],
    says:
      `${at('skip.onnx')}: The model has no classifier that --head-classes could replace, which is a linear ` +
      'layer or a 1x1 convolution at its end: walking back from the output, Mul ("gate") comes first; ' +
      'replace the end of the model before exporting it.',
  },
  {
    name: 'the curve of a folder without a run',
    args: ['curve', files],
    says: `${files} holds no metrics.jsonl with rounds in it: name the folder of a run that has begun to train.`,
  },
  {
    name: 'all parameters frozen',
    args: changed('--freeze', '*'),
    says: '--freeze leaves no parameter to train: freeze fewer.',
  },

  {
    name: 'a config file that is not there',
    args: changed('--config', 'nowhere.yaml'),
    says: 'nowhere.yaml cannot be read (there is no such file): check the path.',
  },
  {
    name: 'a config file that is a list',
    args: changed('--config', at('list.yaml')),
    says: `${at('list.yaml')} must hold settings as "name: value" lines.`,
  },
  {
    name: 'a config file that is not YAML',
    args: changed('--config', at('broken.yaml')),
    says:
      `${at('broken.yaml')}: line 3, column 1 is neither JSON nor YAML (Flow sequence in block collection must ` +
      'be sufficiently indented and end with a ]); correct that line.',
  },

  {
    name: 'a folder that holds a run',
    args: changed('--out', at('run')),
    says: `${at('run')} holds a run already; go on with it by --resume ${at('run')}, or choose another --out.`,
  },
  {
    name: 'a folder with other things in it',
    args: changed('--out', files),
    says: `${files} is not empty (it holds boxes.onnx); choose another --out.`,
  },
  {
    name: 'a folder below a file',
    args: changed('--out', at('net.onnx/run')),
    says:
      `The run folder cannot be made: ${at('net.onnx/run')} cannot be written: ` +
      'a part of the path is a file, not a folder; make room or choose another folder.',
  },
  {
    name: 'resuming a folder that is not a run',
    args: ['train', '--resume', files],
    says:
      `${files} is not the folder of a run (it has no config.yaml): ` +
      "name the folder that --out or the run's last lines named.",
  },
  {
    name: 'resuming what is not there',
    args: ['train', '--resume', 'nowhere'],
    says:
      'nowhere is not the folder of a run (it has no config.yaml): ' +
      "name the folder that --out or the run's last lines named.",
  },
  {
    name: 'resuming into another folder',
    args: ['train', '--resume', at('run'), '--out', 'run'],
    says: '--resume continues in the folder of the run: leave out --out.',
  },
  {
    name: 'resuming with other settings',
    args: ['train', '--resume', at('run'), '--config', at('list.yaml')],
    says: '--resume continues with the settings in its folder: leave out --config.',
  },
  {
    name: 'resuming with another batch',
    args: ['train', '--resume', at('run'), '--batch', '8'],
    says: '--batch cannot change when a run is resumed: leave it out, or start a new run.',
  },
  {
    name: 'resuming what was stopped before its first checkpoint',
    args: ['train', '--resume', at('run')],
    says: `${at('run')} holds no whole checkpoint to resume from: start a new run.`,
  },

  {
    name: 'an address of another machine',
    args: changed('--workers', '1', '--host', '192.0.2.99', '--insecure'),
    says: `--host 192.0.2.99 is not an address of this machine: ${dialled}.`,
  },
  {
    name: 'a certificate without its key',
    args: changed('--workers', '1', '--tls-cert', at('net.onnx')),
    says: '--tls-cert and --tls-key belong together: give both.',
  },
  {
    name: 'an address to advertise that cannot be dialled',
    args: changed('--workers', '1', '--host', '0.0.0.0', '--advertise', '0.0.0.0:7700'),
    says:
      "--advertise 0.0.0.0:7700 is no address that other machines can dial: give one of this machine's, " +
      'or of the router or host that leads to it.',
  },
  {
    name: 'an address to advertise with a port that is none',
    args: changed('--workers', '1', '--advertise', '192.168.1.20:70000'),
    says:
      '--advertise 192.168.1.20:70000 is not ADDRESS or ADDRESS:PORT, such as 192.168.1.20:7700: ' +
      'give what other machines dial.',
  },
  {
    name: 'a worker that listens on the address of another machine',
    args: ['worker', '--join', 'wss://127.0.0.1:1', '--host', '192.0.2.99'],
    says: `--host 192.0.2.99 is not an address of this machine: ${dialled}.`,
  },
  {
    name: 'a worker that listens on no port',
    args: ['worker', '--join', 'wss://127.0.0.1:1', '--port', '0'],
    says: '--port 0 must be a whole number from 1 to 65535.',
  },
  {
    name: 'a doctor for an address that is none',
    args: ['doctor', '--advertise', 'http://here'],
    says:
      '--advertise http://here is not ADDRESS or ADDRESS:PORT, such as 192.168.1.20:7700: ' +
      'give what other machines dial.',
  },

  {
    name: 'a plan that is not there',
    args: changed('--workers', '2', '--plan', 'nowhere.json'),
    says: 'nowhere.json cannot be read (there is no such file): check the path.',
  },
  {
    name: 'a plan file that holds a list',
    args: changed('--workers', '2', '--plan', at('list.yaml')),
    says:
      `${at('list.yaml')}: the document is ["batch"]; ` +
      'give an object with schedule, batchSize, microBatchSize, microBatchCount and stages.',
  },
  {
    name: 'a plan for another model',
    args: changed('--workers', '2', '--plan', at('plan-model.json')),
    says: "The plan is for a model of 5 layers, this model has 1: make a plan from this model's profile.",
  },
  {
    name: 'a plan for another batch',
    args: changed('--workers', '2', '--batch', '8', '--plan', at('plan.json')),
    says: "The plan is for a batch of 4, the run's is 8: give --batch 4 or make a new plan.",
  },
  {
    name: 'a plan for another micro-batch',
    args: changed('--workers', '2', '--micro-batch', '4', '--plan', at('plan.json')),
    says: 'The plan is for micro-batches of 2, --micro-batch is 4: give --micro-batch 2 or make a new plan.',
  },
  {
    name: 'a plan for more devices',
    args: changed('--workers', '1', '--plan', at('plan.json')),
    says: 'The plan needs 2 devices, the run has 1: raise --workers or --remote.',
  },
  {
    name: 'a broken description of the cluster',
    args: changed('--workers', '1', '--cluster', at('broken.yaml')),
    says:
      `${at('broken.yaml')}: line 3, column 1 is neither JSON nor YAML (Flow sequence in block collection must ` +
      'be sufficiently indented and end with a ]); correct that line.',
  },

  {
    name: 'a worker without an address on a network without a coordinator',
    args: ['worker', '--host', '127.0.0.1'],
    code: 1,
    says:
      'No coordinator answers on this network (multicast may be blocked): ' +
      'give --join with the address that asteroid train printed.',
  },
  {
    name: 'a worker with a wrong address',
    args: ['worker', '--join', 'here', '--code', 'x'],
    says: '--join here is not an address such as wss://192.168.1.20:7700: copy the one that asteroid train printed.',
  },
  {
    name: 'a worker with the address of a page',
    args: ['worker', '--join', 'http://127.0.0.1:7700', '--code', 'x'],
    says:
      '--join http://127.0.0.1:7700 is not an address such as wss://192.168.1.20:7700: ' +
      'copy the one that asteroid train printed.',
  },
  {
    name: 'a worker without a join code',
    args: ['worker', '--join', 'ws://127.0.0.1:9'],
    says: 'The join code is missing: give --code-file, or set ASTEROID_JOIN_CODE.',
  },
  {
    name: 'a worker with an address where nothing listens',
    args: ['worker', '--join', 'ws://127.0.0.1:9', '--code', 'x'],
    code: 1,
    says: 'nothing listens at ws://127.0.0.1:9: start it there first, or check the address.',
  },
  {
    name: 'a worker on a plain link',
    args: ['worker', '--join', 'ws://192.0.2.99:7700', '--code', 'x'],
    says:
      'ws://192.0.2.99:7700 would be unencrypted: use the wss:// address that asteroid train printed, or add ' +
      '--insecure if you trust the network between.',
  },
  {
    name: 'a worker with too little memory',
    args: ['worker', '--join', 'ws://127.0.0.1:9', '--code', 'x', '--max-memory', '1'],
    says: '--max-memory 1 must be a whole number of MiB, at least 64.',
  },
  {
    name: 'a worker with more than all of the processor',
    args: ['worker', '--join', 'ws://127.0.0.1:9', '--code', 'x', '--max-cpu', '200%'],
    says: '--max-cpu 200% must be a percentage from 5 to 100.',
  },
  {
    name: 'a worker without threads',
    args: ['worker', '--join', 'ws://127.0.0.1:9', '--code', 'x', '--threads', '0'],
    says: '--threads 0 must be a whole number of at least 1.',
  },

  {
    name: 'eval of nothing',
    args: ['eval', ...data],
    says: '--model or --run is missing: give an ONNX file or a run folder.',
  },
  { name: 'eval without data', args: ['eval', ...model], says: '--data is missing: give the data to test on.' },
  {
    name: 'eval of a truncated model',
    args: ['eval', '--model', at('cut.onnx'), ...data],
    says: `${at('cut.onnx')}: The 100 bytes are not a complete ONNX model; export or copy the file again.`,
  },
  {
    name: 'eval on labels that do not fit',
    args: ['eval', ...model, '--data', `npy:${at('x.npy')},${at('high.npy')}`],
    says:
      `The label 3 at row 7 of ${at('high.npy')} is outside 0…2: the model has 3 outputs; ` +
      'correct the labels, take a model with more outputs, or leave such labels out with --ignore-label 3.',
  },
  {
    name: 'export of a folder that is not a run',
    args: ['export', '--run', files, '-o', 'out.onnx'],
    says:
      `${files} is not the folder of a run (it has no config.yaml): ` +
      "name the folder that --out or the run's last lines named.",
  },
  {
    name: 'export to nowhere',
    args: ['export', '--run', at('run')],
    says: '--output is missing: give the file to write.',
  },
  {
    name: 'profile of nothing',
    args: ['profile'],
    says: '--model is missing: give an .onnx file or the name of a built-in model.',
  },
  {
    name: 'profile to where nothing can be written',
    args: ['profile', ...model, '-o', at('net.onnx/profile.json')],
    says: `${at('net.onnx/profile.json')} cannot be written (a part of the path is a file): choose another file.`,
  },
  {
    name: 'a queue of a server that is shorter than its batch',
    args: ['serve', ...model, '--queue', '2', '--batch', '8', '--micro-batch', '8'],
    says: '--queue 2 has no room for a batch of 8 samples: raise --queue, or lower --batch.',
  },
  {
    name: 'plan without a cluster',
    args: ['plan', '--profile', at('profile.json'), '--batch', '4'],
    says: '--cluster is missing: give a file with devices and links.',
  },
  {
    name: 'plan without a batch',
    args: ['plan', '--profile', at('profile.json'), '--cluster', at('cluster.json')],
    says: '--batch is missing: give the samples of an update.',
  },
  {
    name: 'plan of nothing',
    args: ['plan', '--cluster', at('cluster.json'), '--batch', '4'],
    says: '--profile or --model is missing: give a profile, or a model to measure here.',
  },
  {
    name: 'plan that fits nowhere',
    args: ['plan', '--profile', at('profile.json'), '--cluster', at('tiny.json'), '--batch', '4'],
    says:
      'Model "net" fits nowhere (planner best, micro-batches of 1): device "a" has 0 MiB and lacks 1 MiB; ' +
      'raise its memoryMiB to 1.',
  },
  {
    name: 'plan to where there is no folder',
    args: [
      'plan',
      '--profile',
      at('profile.json'),
      '--cluster',
      at('cluster.json'),
      '--batch',
      '4',
      '-o',
      'no/such/plan.json',
    ],
    says: 'no/such/plan.json cannot be written (there is no such folder): choose another file.',
  },
  {
    name: 'simulate without a plan',
    args: ['simulate', '--profile', at('profile.json'), '--cluster', at('cluster.json')],
    says: '--plan is missing: give the file.',
  },
  {
    name: 'simulate a plan of another model',
    args: [
      'simulate',
      '--profile',
      at('profile.json'),
      '--cluster',
      at('cluster.json'),
      '--plan',
      at('plan-model.json'),
    ],
    says: "plan: stages[0].layers[1] is 5; end the last stage at 1, the number of the profile's layers.",
  },
  {
    name: 'profile of a cell without tangents',
    args: ['profile', ...model, '--state', 'h=g'],
    says: '--state needs --tangents N: cells are trained by forward gradients alone.',
  },
  {
    name: 'plan for a cell in another mode',
    args: ['plan', ...model, '--state', 'h=g', '--cluster', at('cluster.json'), '--batch', '4'],
    says: '--state needs --mode forward-gradient: cells are trained by forward gradients alone.',
  },
  {
    name: 'verify without workers',
    args: ['verify', ...model, ...data, '--batch', '4', '--workers', '0'],
    says: '--workers 0 leaves nothing to compare: give at least 1.',
  },
  {
    name: 'verify with no tolerance',
    args: ['verify', ...model, ...data, '--batch', '4', '--tolerance', '0'],
    says: '--tolerance 0 must be a number above 0.',
  },
];

describe('a wrong input', { concurrency: 2 }, () => {
  for (const entry of cases) test(entry.name, () => check(entry));
});
