import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { deviceKinds } from '../../cluster/device-kinds.ts';
import { barChart, lineChart } from './charts.ts';
import { readTestbeds } from './experiment.ts';
import { experiments } from './experiments.ts';

function rootAbove(folder: string): string {
  if (existsSync(join(folder, 'clusters'))) return folder;
  assert.notEqual(folder, join(folder, '..'), 'clusters/ is above');
  return rootAbove(join(folder, '..'));
}

const root = rootAbove(import.meta.dirname);
const section = async (name: string) => {
  const experiment = experiments[name];
  assert.ok(experiment !== undefined, name);
  return experiment(readTestbeds(root));
};

/** "−7 %" in a row's last cell, as a fraction. */
function residuals(text: string, kind: string): number[] {
  const rows = text
    .split('\n')
    .filter((line) => new RegExp(`^\\| (\\d x )?${kind} \\|.*\\| [+−]?\\d+ % \\|$`).test(line));
  return rows.map((line) => Number(/([+−]?)(\d+) % \|$/.exec(line)?.[2]) / 100);
}

test('the device kinds are as close to the numbers they were fitted to as claimed', async () => {
  const { text } = await section('fits');
  for (const [kind, count] of [
    ['jetson-nano', 3],
    ['jetson-tx2', 3],
    ['rcc-ve', 3],
    ['minnowboard', 3],
  ] as const) {
    const found = residuals(text, kind);
    assert.equal(found.length, count, kind);
    const claimed = Number(/within (\d+) %/.exec(deviceKinds[kind]?.source ?? '')?.[1]) / 100;
    assert.ok(Math.max(...found) <= claimed, `${kind}: ${Math.max(...found)} > ${claimed}`);
  }
});

test('FTPipeHD is about 6.8 times as fast as PipeDream, predicted from single machines alone', async () => {
  const { text } = await section('ftpipehd');
  const ratio = /\| 1000 Mbps \| PipeDream over FTPipeHD \| 6\.83x \| ([\d.]+)x/.exec(text)?.[1];
  assert.ok(Math.abs(Number(ratio) / 6.83 - 1) < 0.15, text);
});

test('any device of Env. D lost: light keeps 90 % of the throughput and recovers 14 times as fast', async () => {
  const { text } = await section('figure16');
  const rows = text.split('\n').filter((line) => /^\| (tx2|nano)-\d[^|]* \| [\d.]+ MB/.test(line));
  assert.equal(rows.length, 5, text);
  for (const row of rows) {
    const cells = row.split('|').map((cell) => cell.trim());
    assert.ok(Number(cells[6]?.replace('x', '')) >= 14, row);
    assert.ok(Number(cells[9]?.replace(' %', '')) >= 90, row);
  }
  assert.match(
    text,
    /it recovers 1[4-9]\.\dx as fast from the loss of the second device \(B\) as\nheavy at the paper's planning speed/,
  );
});

test("FTPipeHD's recovery moves weights, unlike ResPipe's, and its epochs are then several times as fast", async () => {
  const { text } = await section('ftpipehd-table3');
  assert.match(text, /\| FTPipeHD \| 2\.24 s \| [1-9]\d*\.\d MB, /);
  assert.match(text, /\| ResPipe \| 0\.13 s \| 0\.0 MB, 0\.00 s \|/);
  const ratio = /as fast as ResPipe's in the paper and ([\d.]+)x here/.exec(text)?.[1];
  assert.ok(Math.abs(Number(ratio) / 6.91 - 1) < 0.25, text);
});

test('the page has every table and figure, and its charts exist', () => {
  const page = readFileSync(join(root, 'docs/reproduction.md'), 'utf8');
  const titles = [...page.matchAll(/^## (.*)$/gm)].map((match) => match[1]?.split(':')[0]);
  assert.deepEqual(titles, [
    'What was fitted',
    ...[
      'Asteroid, Table 2',
      'Asteroid, Table 4',
      'Asteroid, Fig. 13',
      'Asteroid, Fig. 15',
      'Asteroid, Fig. 16 and 17',
      'Asteroid, Fig. 18',
      'Asteroid, Table 7',
    ],
    'Asteroid, §5.7',
    ...['PipeEdge, Table II', 'PipeEdge, Fig. 4', 'PipeEdge, Fig. 5', 'PipeEdge, Fig. 6'],
    'FTPipeHD, §IV-D',
    'FTPipeHD, Table III',
  ]);
  assert.equal(titles.length, Object.keys(experiments).length);
  const charts = [...page.matchAll(/\]\((reproduction\/[\w-]+\.svg)\)/g)].map((match) => match[1] ?? '');
  assert.ok(charts.length >= 10);
  for (const chart of charts)
    assert.match(readFileSync(join(root, 'docs', chart), 'utf8'), /^<svg [\s\S]*<\/svg>\n$/, chart);
});

test('charts: a bar for each value, × where there is none; lines have gaps', () => {
  const bars = barChart({
    title: 'a < b',
    unit: 'items',
    groups: ['one', 'two'],
    series: [
      { name: 'x', values: [1, 4] },
      { name: 'y', values: [2, undefined] },
    ],
    reference: 1,
  });
  assert.equal([...bars.matchAll(/<title>/g)].length, 3);
  assert.equal([...bars.matchAll(/>×</g)].length, 1);
  assert.match(bars, /a &lt; b/);
  const lines = lineChart({
    title: 't',
    unit: 'u',
    xName: 'n',
    xs: [1, 2, 3, 4],
    series: [{ name: 'x', values: [1, 2, undefined, 3] }],
  });
  assert.equal([...lines.matchAll(/<circle/g)].length, 3);
  assert.match(lines, /<path d="M[\d. ]+L[\d. ]+M[\d. ]+" /);
  assert.doesNotMatch(bars + lines, /NaN|undefined/);
});

test('16 boards in a pipeline, and bits by the bandwidth: 90 % of the throughput is kept down to 5 Mbps', async () => {
  const four = (await section('pipeedge-figure4')).text;
  for (const [model, speedup] of [
    ['ViT-Large', 14.6],
    ['ViT-Huge', 15.7],
    ['BERT-Large', 14.9],
  ] as const)
    assert.match(four, new RegExp(`\\| rcc-ve \\| ${model} \\|.* \\| ${speedup}x \\|`));
  const { text } = await section('pipeedge-figure6');
  const kept = [...text.matchAll(/(\d+) %, \d+(–\d+)?/g)].map(([, percent]) => Number(percent));
  assert.equal(kept.length, 27);
  assert.ok(Math.min(...kept) >= 90, text);
});
