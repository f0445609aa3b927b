import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LearningCurve } from '../../runtime/run/learning-curve.ts';
import { axis, panels, place } from './chart.ts';
import { curveSvg } from './svg-chart.ts';
import { drawPanel } from './terminal-chart.ts';

test('axes begin and end at round numbers around their range', () => {
  assert.deepEqual(axis(0.22, 0.58, 4), { least: 0.2, most: 0.6, ticks: [0.2, 0.3, 0.4, 0.5, 0.6] });
  assert.deepEqual(axis(0, 8, 8).ticks, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  assert.deepEqual(axis(0.913, 0.927, 5).ticks, [0.91, 0.915, 0.92, 0.925, 0.93]);
  assert.deepEqual(axis(3, 3, 5).ticks.includes(3), true);
  // Closer together than ticks can be written.
  assert.deepEqual(axis(0.5, 0.5 + 2 ** -52, 5), axis(0.5 + 2 ** -52, 0.5 + 2 ** -52, 5));
  const { least, most } = axis(0, 0, 5);
  assert.ok(least < most);
  assert.equal(place({ least: 2, most: 4, ticks: [] }, 3), 0.5);
});

/** A loss that falls from 100 and then lies between 1 and 0, tested twice. */
const curve: LearningCurve = {
  run: 'a<b',
  unit: 'epoch',
  loss: {
    train: Array.from({ length: 41 }, (_, index) => ({ x: index / 10, y: index < 2 ? 100 : 1 - (index - 2) / 38 })),
    test: [
      { x: 2, y: 0.75 },
      { x: 4, y: 0.25 },
    ],
  },
  accuracy: { train: [], test: [] },
};

test('the high values at the start of a loss do not flatten the rest', () => {
  const [loss, ...others] = panels(curve);
  assert.equal(others.length, 0);
  assert.deepEqual(loss?.y, { least: 0, most: 1, ticks: [0, 0.2, 0.4, 0.6, 0.8, 1] });
  assert.deepEqual(loss?.x, { least: 0, most: 4, ticks: [0, 1, 2, 3, 4] });
  assert.deepEqual(
    [0.2, 1, 0].map((value) => loss?.format(value)),
    ['0.2', '1', '0'],
  );
});

test('rounds whose loss is not a number are drawn within the panel of the accuracy', () => {
  const flat = { train: [1, 2, 2e9].map((x) => ({ x, y: 0.5 })), test: [] };
  const [, accuracy] = panels({ ...curve, loss: { train: flat.train.slice(0, 2), test: [] }, accuracy: flat });
  assert.ok(accuracy);
  assert.equal(accuracy.x.most, 2e9);
  const plain = (text: string): string => text;
  for (const text of drawPanel(accuracy, { columns: 27, rows: 6, train: plain, test: plain }))
    assert.ok(text.length <= 27, text);
});

test('on a terminal: a line of dots, a mark for each test, ticks at both axes', () => {
  const [loss] = panels(curve);
  assert.ok(loss);
  const plain = (text: string): string => text;
  const lines = drawPanel(loss, { columns: 27, rows: 6, train: plain, test: plain });
  assert.deepEqual(lines, [
    '  1 ┤ ⠑⠢⢄',
    '0.8 ┤    ⠉⠒⢄⡀  ●',
    '0.6 ┤       ⠈⠑⠤⣀',
    '0.4 ┤           ⠉⠒⢄⡀',
    '0.2 ┤              ⠈⠑⠤⣀  ●',
    '  0 ┤                  ⠑⠢⢄',
    '    └┬────┬────┬────┬────┬',
    '     0    1    2    3    4',
  ]);
});

test('as SVG: whole, with both lines, the last test’s value, and nothing that could be markup', () => {
  const svg = curveSvg(curve);
  assert.match(svg, /^<svg xmlns="http:\/\/www\.w3\.org\/2000\/svg" viewBox="0 0 420 300"/);
  assert.ok(svg.includes('<title>Learning curve of a&lt;b</title>'));
  assert.equal(svg.split('<polyline').length - 1, 2);
  assert.equal(svg.split('<circle').length - 1, 2);
  assert.ok(svg.includes('>0.25</text>'));
  assert.equal(svg.split('<g ').length, svg.split('</g>').length);
});
