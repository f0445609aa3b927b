import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from './cluster.ts';
import { checkTogether, parseCluster, parsePlan, parseProfile } from './validate.ts';

const cluster: Cluster = {
  devices: [
    { name: 'a', kind: 'board', memoryMiB: 512, powerW: 5 },
    { name: 'b', memoryMiB: 1024 },
  ],
  links: { default: { bandwidthMbps: 100 }, pairs: [{ between: ['a', 'b'], bandwidthMbps: 50, latencyMs: 1 }] },
  dataDevice: 'b',
};

const profile: Profile = {
  model: 'two',
  inputBytes: 784,
  labelBytes: 1,
  layers: [
    { name: 'l0', outputBytes: 10, weightBytes: 20, savedBytes: 30, flops: 40 },
    { name: 'l1', outputBytes: 10, weightBytes: 0, savedBytes: 0, flops: 0, batchDependent: true },
  ],
  batchSizes: [1, 4],
  devices: {
    board: {
      forwardMs: [
        [1, 2],
        [3, 4],
      ],
      backwardMs: [
        [1, 2],
        [3, 4],
      ],
    },
    b: {
      forwardMs: [
        [1, 2],
        [3, 4],
      ],
      backwardMs: [
        [1, 2],
        [3, 4],
      ],
      updateMs: [0, 1],
    },
  },
};

const plan: PlanLayout = {
  planner: 'manual',
  schedule: '1f1b',
  batchSize: 8,
  microBatchSize: 4,
  microBatchCount: 2,
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [4], inFlight: 2 },
    { layers: [1, 2], devices: ['b'], samples: [4], inFlight: 1 },
  ],
};

test('documents come back as they are, from a value, from JSON and from YAML; unknown keys are dropped', () => {
  assert.deepEqual(parseCluster({ ...cluster, comment: 'mine' }), cluster);
  assert.deepEqual(parseCluster(JSON.stringify(cluster)), cluster);
  const yaml = `
devices: # two of them
  - { name: a, kind: board, memoryMiB: 512, powerW: 5 }
  - { name: b, memoryMiB: 1024 }
links:
  default: { bandwidthMbps: 100 }
  pairs:
    - { between: [a, b], bandwidthMbps: 50, latencyMs: 1 }
dataDevice: b
`;
  assert.deepEqual(parseCluster(yaml), cluster);
  assert.deepEqual(parseProfile(JSON.stringify(profile)), profile);
  assert.deepEqual(parsePlan(plan), plan);
});

test('a plan may be the document that `asteroid plan` prints; without a valid prediction it is a bare layout', () => {
  const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: { a: 1, b: 2 } };
  assert.deepEqual(parsePlan({ plan: { ...plan, predicted }, planningMs: 12 }), { ...plan, predicted });
  const { planner: _, ...rest } = plan;
  assert.deepEqual(parsePlan(JSON.stringify(rest)), plan);
  assert.deepEqual(parsePlan({ ...plan, predicted: 'soon' }), plan);
});

/** `cluster` and so on with one key changed; a path of keys, then the value (undefined removes the key). */
function withValue<Document>(document: Document, path: readonly (string | number)[], value: unknown): unknown {
  const copy = structuredClone(document) as Record<string | number, unknown>;
  let at = copy;
  for (const key of path.slice(0, -1)) at = at[key] as Record<string | number, unknown>;
  const last = path.at(-1) ?? '';
  if (value === undefined) delete at[last];
  else at[last] = value;
  return copy;
}

const refused: readonly (readonly [
  parse: (value: unknown) => unknown,
  document: unknown,
  path: readonly (string | number)[],
  value: unknown,
  sentence: string,
])[] = [
  [
    parseCluster,
    cluster,
    ['links', 'default', 'bandwidthMbps'],
    -5,
    'cluster: links.default.bandwidthMbps is -5; give a number above 0 (megabits a second).',
  ],
  [
    parseCluster,
    cluster,
    ['links', 'default', 'bandwidthMbps'],
    Number.NaN,
    'cluster: links.default.bandwidthMbps is NaN; give a number above 0 (megabits a second).',
  ],
  [
    parseCluster,
    cluster,
    ['links', 'pairs', 0, 'latencyMs'],
    -1,
    'cluster: links.pairs[0].latencyMs is -1; give a number of 0 or more (milliseconds).',
  ],
  [
    parseCluster,
    cluster,
    ['devices', 1, 'memoryMiB'],
    undefined,
    'cluster: devices[1].memoryMiB is missing; give a number above 0 (MiB of memory for training).',
  ],
  [
    parseCluster,
    cluster,
    ['devices', 1, 'memoryMiB'],
    '1 GB',
    'cluster: devices[1].memoryMiB is "1 GB"; give a number above 0 (MiB of memory for training).',
  ],
  [
    parseCluster,
    cluster,
    ['devices', 1, 'memoryMiB'],
    Number.POSITIVE_INFINITY,
    'cluster: devices[1].memoryMiB is Infinity; give a number above 0 (MiB of memory for training).',
  ],
  [parseCluster, cluster, ['devices'], [], 'cluster: devices is []; give a list of at least one of devices.'],
  [
    parseCluster,
    cluster,
    ['devices', 1, 'name'],
    'a',
    'cluster: devices[1].name repeats "a"; give each device a name of its own.',
  ],
  [
    parseCluster,
    cluster,
    ['links', 'pairs', 0, 'between'],
    ['a', 'c'],
    'cluster: links.pairs[0].between names "c", which is not a device; use one of "a", "b".',
  ],
  [
    parseCluster,
    cluster,
    ['links', 'pairs', 0, 'between'],
    ['a', 'a'],
    'cluster: links.pairs[0].between joins "a" to itself; name two different devices.',
  ],
  [
    parseCluster,
    cluster,
    ['links', 'pairs', 1],
    { between: ['b', 'a'], bandwidthMbps: 1 },
    'cluster: links.pairs[1].between repeats the link between "b" and "a"; keep one of them (a pair counts ' +
      'for both directions).',
  ],
  [
    parseCluster,
    cluster,
    ['dataDevice'],
    'z',
    'cluster: dataDevice names "z", which is not a device; use one of "a", "b".',
  ],
  [parseCluster, [], [], [], 'cluster: the document is []; give an object with devices and links.'],
  [
    parseProfile,
    profile,
    ['batchSizes', 1],
    1,
    'profile: batchSizes[1] is 1, not above the one before it; list the batch sizes in ascending order.',
  ],
  [
    parseProfile,
    profile,
    ['batchSizes', 1],
    1.5,
    'profile: batchSizes[1] is 1.5; give a whole number of 1 or more (a measured batch size).',
  ],
  [
    parseProfile,
    profile,
    ['devices', 'board', 'forwardMs', 1, 0],
    null,
    'profile: devices.board.forwardMs[1][0] is null; give a number of 0 or more (milliseconds).',
  ],
  [
    parseProfile,
    profile,
    ['devices', 'board', 'forwardMs', 1],
    [3],
    'profile: devices.board.forwardMs[1] has 1 entries; give 2, one for each entry of layers.',
  ],
  [
    parseProfile,
    profile,
    ['devices', 'board', 'backwardMs'],
    [[1, 2]],
    'profile: devices.board.backwardMs has 1 entries; give 2, one for each entry of batchSizes.',
  ],
  [
    parseProfile,
    profile,
    ['devices', 'b', 'updateMs'],
    [1],
    'profile: devices.b.updateMs has 1 entries; give 2, one for each entry of layers.',
  ],
  [
    parseProfile,
    profile,
    ['layers', 0, 'weightBytes'],
    undefined,
    'profile: layers[0].weightBytes is missing; give a number of 0 or more (bytes of weights).',
  ],
  [
    parsePlan,
    plan,
    ['batchSize'],
    9,
    'plan: batchSize is 9, not microBatchSize × microBatchCount = 4 × 2; make the three agree.',
  ],
  [
    parsePlan,
    plan,
    ['stages', 1, 'layers'],
    [0, 2],
    'plan: stages[1].layers starts at layer 0; start it at 1, so that each layer is in exactly one stage.',
  ],
  [
    parsePlan,
    plan,
    ['stages', 1, 'layers'],
    [1, 1],
    'plan: stages[1].layers is [1, 1], which holds no layer; end it after its first layer.',
  ],
  [
    parsePlan,
    plan,
    ['stages', 1, 'samples'],
    [3],
    'plan: stages[1].samples adds up to 3; make it add up to microBatchSize, 4.',
  ],
  [
    parsePlan,
    plan,
    ['stages', 1, 'samples'],
    [2, 2],
    'plan: stages[1].samples has 2 entries for 1 devices; give one for each device.',
  ],
  [
    parsePlan,
    plan,
    ['stages', 1, 'devices'],
    ['a'],
    'plan: stages[1].devices[0] repeats "a"; let each device stand in one stage, once.',
  ],
  [
    parsePlan,
    plan,
    ['stages', 1, 'inFlight'],
    0,
    'plan: stages[1].inFlight is 0; give a whole number of 1 or more (micro-batches kept at once).',
  ],
  [
    parsePlan,
    { plan: 'plan.json' },
    ['planningMs'],
    1,
    'plan: the document is "plan.json"; give an object with schedule, batchSize, microBatchSize, ' +
      'microBatchCount and stages.',
  ],
];

for (const [parse, document, path, value, sentence] of refused) {
  test(`refused: ${sentence}`, () => {
    const broken = path.length === 0 ? value : withValue(document, path, value);
    assert.throws(() => parse(broken), { name: 'InputError', message: sentence });
  });
}

test('a text that is neither JSON nor YAML is refused with its line and the file that it came from', () => {
  assert.throws(
    () => parseCluster('devices:\n  - name: a\n   memoryMiB: [', 'my.yaml'),
    (error: Error) => {
      assert.equal(error.name, 'InputError');
      assert.match(
        error.message,
        /^my\.yaml: line 3, column \d+ is neither JSON nor YAML \(.+\); correct that line\.$/,
      );
      return true;
    },
  );
  assert.throws(
    () => parseCluster('{"devices": [', 'my.json'),
    /^InputError: my\.json: line 1, column \d+ is neither JSON nor YAML/,
  );
  assert.throws(() => parseCluster('', 'empty.yaml'), {
    message: 'empty.yaml: the document is null; give an object with devices and links.',
  });
});

test('YAML aliases cannot blow up', () => {
  const rows = Array.from(
    { length: 12 },
    (_, row) => `a${row}: &a${row} [${Array.from({ length: 9 }, () => (row === 0 ? '1' : `*a${row - 1}`)).join(', ')}]`,
  );
  assert.throws(
    () => parseCluster(rows.join('\n'), 'bomb.yaml'),
    /^InputError: bomb\.yaml: the YAML cannot be read \(.*\); write it without aliases\.$/,
  );
});

test('a few numbers do not make a Program of gigabytes: micro-batches are limited', () => {
  const many = { ...plan, batchSize: plan.microBatchSize * 1e6, microBatchCount: 1e6 };
  assert.throws(
    () => parsePlan(many),
    /^InputError: plan: microBatchCount is 1000000; give a whole number from 1 to 16384 \(micro-batches .*\)\.$/,
  );
});

test('odd YAML is refused by our sentence alone, without a warning of the parser', async () => {
  const warnings: string[] = [];
  const note = ({ message }: Error): void => void warnings.push(message);
  process.on('warning', note);
  assert.throws(() => parseCluster('? [a, b]\n: 1\n', 'odd.yaml'), /^InputError: odd\.yaml: devices is missing/);
  await new Promise(setImmediate); // warnings come a tick later
  process.off('warning', note);
  assert.deepEqual(warnings, []);
});

test('a plan, a profile and a cluster must agree', () => {
  checkTogether(plan, profile, cluster);
  const other: Cluster = {
    ...cluster,
    devices: [
      { name: 'a', memoryMiB: 1 },
      { name: 'c', kind: 'board', memoryMiB: 1 },
    ],
  };
  assert.throws(() => checkTogether(plan, profile, other), {
    name: 'InputError',
    message: /no times for device "a" \(no kind\)/,
  });
  assert.throws(() => checkTogether({ ...plan, stages: plan.stages.slice(0, 1) }, profile, cluster), {
    message: "plan: stages[0].layers[1] is 1; end the last stage at 2, the number of the profile's layers.",
  });
  const renamed = {
    ...plan,
    stages: plan.stages.map((stage) => ({
      ...stage,
      devices: stage.devices.map((name) => (name === 'b' ? 'c' : name)),
    })),
  };
  assert.throws(() => checkTogether(renamed, profile, cluster), {
    message: 'plan: stages[1].devices[0] names "c", which the cluster does not have; use one of "a", "b".',
  });
});

test('a mistake in a text of several lines is named with its line, in YAML and in JSON', () => {
  const yaml =
    'devices:\n  - { name: a, memoryMiB: 512 }\n  - name: b\n    memoryMiB: -1\n' +
    'links: { default: { bandwidthMbps: 100 } }\n';
  const sentence = 'my.yaml, line 4: devices[1].memoryMiB is -1; give a number above 0 (MiB of memory for training).';
  assert.throws(() => parseCluster(yaml, 'my.yaml'), { name: 'InputError', message: sentence });
  assert.throws(() => parseCluster(yaml.replace('    memoryMiB: -1\n', ''), 'my.yaml'), {
    message: /^my\.yaml, line 3: devices\[1\]\.memoryMiB is missing; /,
  });
  assert.throws(() => parseCluster(yaml.replace('-1', '7').replace('name: b', 'name: a'), 'my.yaml'), {
    message: 'my.yaml, line 3: devices[1].name repeats "a"; give each device a name of its own.',
  });
  const slow: Cluster = { ...cluster, links: { default: { bandwidthMbps: -100 } } };
  assert.throws(() => parseCluster(JSON.stringify(slow, null, 2), 'my.json'), {
    message: /^my\.json, line 16: links\.default\.bandwidthMbps is -100; /,
  });
  assert.throws(() => parseCluster(JSON.stringify(slow), 'my.json'), {
    message: /^my\.json: links\.default\.bandwidthMbps is -100; /,
  });
  const printed = `{\n "plan": {\n  "schedule": "1f1b",\n  "batchSize": 0\n } }`;
  assert.throws(() => parsePlan(printed, 'plan.json'), { message: /^plan\.json, line 4: batchSize is 0; / });
});
