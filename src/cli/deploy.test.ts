// deploy/: its command lines have flags that exist, its dashboard shows metrics that exist, its units are valid.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { parseAllDocuments } from 'yaml';
import type { Plan } from '../cluster/cluster.ts';
import type { RunEvent } from '../runtime/protocol/events.ts';
import { ServeMetrics } from '../runtime/run/serve-metrics.ts';
import { TrainMetrics } from '../runtime/run/train-metrics.ts';
import { repository } from '../testing/source-files.ts';
import { createProgram } from './program.ts';

const deploy = join(repository, 'deploy');
const read = (path: string): string => readFileSync(join(deploy, path), 'utf8');

/** Checks that a command line's command and flags exist, and that each flag has a value if it takes one. */
async function checkCommandLine(words: readonly string[], where: string): Promise<void> {
  const [name, ...rest] = words;
  const command = (await createProgram(name)).commands.find((one) => one.name() === name);
  assert.ok(command !== undefined, `${where}: there is no command ${name}`);
  for (const [index, word] of rest.entries()) {
    if (!word.startsWith('--')) continue;
    const option = command.options.find(({ long }) => long === word);
    assert.ok(option !== undefined, `${where}: asteroid ${name} has no ${word}`);
    const value = rest[index + 1];
    if (option.required) assert.ok(value !== undefined && !value.startsWith('--'), `${where}: ${word} has no value`);
  }
}

/** Command lines in a text: what follows `asteroid`, up to the end of the command. */
function commandLines(text: string): (readonly string[])[] {
  return [...text.matchAll(/(?:^|[\s/])asteroid ((?:train|worker|serve|devices)\b[^;\n`>#|]*)/g)].map(([, line = '']) =>
    line.trim().split(/\s+/),
  );
}

test('command lines of units, manifests and their page have flags that exist', async () => {
  const units = readdirSync(join(deploy, 'systemd')).map((name) => `systemd/${name}`);
  for (const path of [...units, 'README.md']) {
    const lines = commandLines(read(path).replace(/\\\n\s*/g, ' '));
    assert.ok(lines.length > 0, `${path} has no command line`);
    for (const line of lines) await checkCommandLine(line, path);
  }
  const containers = ['coordinator.yaml', 'workers.yaml'].flatMap((name) =>
    parseAllDocuments(read(`kubernetes/${name}`)).flatMap((document) => containersOf(document.toJS({}))),
  );
  assert.equal(containers.length, 2);
  for (const { command, args } of containers) {
    const lines = command === undefined ? [args] : commandLines(args.join(' '));
    assert.equal(lines.length, command === undefined ? 1 : 2);
    for (const line of lines) await checkCommandLine(line, 'kubernetes');
  }
});

interface Container {
  readonly command?: readonly string[];
  readonly args: readonly string[];
}

function containersOf(resource: {
  readonly spec?: { readonly template?: { readonly spec: { readonly containers: readonly Container[] } } };
}): readonly Container[] {
  return resource.spec?.template?.spec.containers ?? [];
}

/** The names of all metrics, after every kind of event that they come from. */
function metricNames(): Set<string> {
  const plan = {
    ...{ batchSize: 1, stages: [], predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: { a: 1 } } },
  } as unknown as Plan;
  const train = new TrainMetrics('net', { now: () => 0 });
  const metrics = { round: 0, epoch: 0, loss: 1, samplesPerS: 1, lr: 1, accuracy: 1 };
  const events: readonly RunEvent[] = [
    { kind: 'joined', device: 'a', cores: 1, memoryMiB: 1, engine: 'onnxruntime' },
    { kind: 'load', device: 'a', usedCores: 1, residentMiB: 1 },
    { kind: 'deployment', plan },
    { kind: 'round', metrics, endRound: 2, busyFraction: { a: 1 }, work: {} },
    { kind: 'evaluated', round: 1, accuracy: 1, loss: 1, sampleCount: 1 },
    { kind: 'recovered', cause: '', round: 1, seconds: 1 },
    { kind: 'checkpoint', round: 1, path: '' },
  ];
  for (const event of events) train.observe(event);
  const serve = new ServeMetrics();
  serve.answered(200, 1);
  const gauges = { queuedSamples: 0, openRounds: 0, devices: 1, isReady: true, residentBytes: 1 };
  const text = train.text(1) + serve.text(gauges);
  return new Set([...text.matchAll(/^(asteroid_\w+)/gm)].map(([, name = '']) => name));
}

test('the dashboard asks for metrics that exist', () => {
  const known = metricNames();
  const dashboard = JSON.parse(read('grafana/asteroid.json')) as {
    readonly panels: readonly { readonly id: number; readonly targets?: readonly { readonly expr: string }[] }[];
  };
  const expressions = dashboard.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
  assert.ok(expressions.length >= 20);
  assert.equal(new Set(dashboard.panels.map(({ id }) => id)).size, dashboard.panels.length);
  for (const expression of [...expressions, 'asteroid_resident_bytes'])
    for (const [name] of expression.matchAll(/asteroid_\w+/g)) assert.ok(known.has(name), `there is no metric ${name}`);
});

const hasAnalyze = spawnSync('systemd-analyze', ['--version']).status === 0;

test('units are valid', { skip: hasAnalyze ? false : 'systemd-analyze is missing' }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-units-'));
  try {
    for (const name of readdirSync(join(deploy, 'systemd'))) {
      // The command need not be installed here.
      writeFileSync(join(folder, name), read(`systemd/${name}`).replace('/usr/local/bin/asteroid', '/bin/true'));
      const { status, stderr } = spawnSync('systemd-analyze', ['verify', join(folder, name)], { encoding: 'utf8' });
      assert.equal(status, 0, stderr);
      assert.equal(stderr, '');
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
