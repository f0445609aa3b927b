// What is written to a terminal, byte by byte, and to anything else.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FakeStream } from '../testing/fake-stream.ts';
import { bandwidth, bar, clip, command, counted, createTerminal, duration, grouped, memory } from './terminal.ts';

const environment = { NO_COLOR: '1' };

test('off a terminal: plain lines, no colours, nothing live', () => {
  const stream = new FakeStream({ isTTY: false });
  const terminal = createTerminal(stream, {}, () => 0);
  assert.equal(terminal.isInteractive, false);
  terminal.section('Devices', 'a');
  terminal.section('Devices', 'b\nc');
  terminal.live(['bar']);
  terminal.keepLive();
  terminal.print(terminal.colors.red('end'));
  assert.equal(stream.text, 'Devices    a\n           b\n           c\nend\n');
});

test('CI and dumb terminals get plain lines too', () => {
  for (const given of [{ CI: 'true' }, { TERM: 'dumb' }]) {
    assert.equal(createTerminal(new FakeStream({}), given, () => 0).isInteractive, false);
  }
});

test('NO_COLOR leaves colours away; empty, it is not set', () => {
  const label = (given: NodeJS.ProcessEnv): string =>
    createTerminal(new FakeStream({}), given, () => 0).colors.bold('x');
  assert.equal(label({}), '\u001b[1mx\u001b[22m');
  assert.equal(label({ NO_COLOR: '' }), '\u001b[1mx\u001b[22m');
  assert.equal(label({ NO_COLOR: '1' }), 'x');
});

test('live lines are painted over in one write, at most every 80 ms', () => {
  const stream = new FakeStream({});
  let nowMs = 1000;
  const terminal = createTerminal(stream, environment, () => nowMs);
  terminal.live(['one', 'two']);
  assert.deepEqual(stream.writes, ['one\u001b[K\ntwo\u001b[K\n']);
  nowMs += 79;
  terminal.live(['three', 'four']);
  assert.equal(stream.writes.length, 1);
  nowMs += 1;
  terminal.live(['five', 'six']);
  assert.equal(stream.writes[1], '\u001b[2A\rfive\u001b[K\nsix\u001b[K\n\u001b[0J');
  terminal.live(['seven']);
  assert.equal(stream.writes[2], '\u001b[2A\rseven\u001b[K\n\u001b[0J', 'another number of lines is painted at once');
  assert.deepEqual(stream.screen(), ['seven']);
});

test('printed lines go above the live ones and stay', () => {
  const stream = new FakeStream({});
  const terminal = createTerminal(stream, environment, () => 0);
  terminal.live(['bar', 'more']);
  terminal.print('joined');
  terminal.print('');
  terminal.section('Links', 'a\nb');
  assert.deepEqual(stream.screen(), ['joined', '', 'Links      a', '           b', 'bar', 'more']);
  terminal.live([]);
  terminal.print('end');
  assert.deepEqual(stream.screen(), ['joined', '', 'Links      a', '           b', 'end']);
});

test('kept live lines show the latest state and are not painted over', () => {
  const stream = new FakeStream({});
  const terminal = createTerminal(stream, environment, () => 0);
  terminal.live(['10 %']);
  terminal.live(['99 %']);
  terminal.keepLive();
  terminal.print('done');
  assert.deepEqual(stream.screen(), ['99 %', 'done']);
});

test('live lines are cut to the width, and to the height, of the terminal as it is now', () => {
  const stream = new FakeStream({ columns: 30, rows: 3 });
  const terminal = createTerminal(stream, {}, () => 0);
  terminal.live([`${terminal.colors.green('x'.repeat(29))}yz`, 'b', 'c', 'd']);
  assert.deepEqual(stream.screen(), [`${'x'.repeat(29)}y`, 'b']);
});

test('clip counts no escape sequences', () => {
  assert.equal(clip('plain text', 5), 'plain');
  assert.equal(clip('short', 5), 'short');
  assert.equal(clip('\u001b[31mred\u001b[39m and more', 6), '\u001b[31mred\u001b[39m an\u001b[0m');
});

test('bars', () => {
  assert.equal(bar(0, 4), '░░░░');
  assert.equal(bar(0.5, 4), '██░░');
  assert.equal(bar(0.53125, 4), '██▏░');
  assert.equal(bar(1, 4), '████');
  assert.equal(bar(7, 4), '████');
  assert.equal(bar(-1, 4), '░░░░');
  assert.equal(bar(Number.NaN, 4), '░░░░');
});

test('durations', () => {
  const seconds = [
    0.0004,
    0.012,
    0.9994,
    0.9996,
    4.24,
    9.94,
    9.96,
    59.4,
    59.6,
    187,
    3599.6,
    3725,
    Number.POSITIVE_INFINITY,
  ];
  const texts = [
    '0 ms',
    '12 ms',
    '999 ms',
    '1.0 s',
    '4.2 s',
    '9.9 s',
    '10 s',
    '59 s',
    '1 min 00 s',
    '3 min 07 s',
    '1 h 00 min',
    '1 h 02 min',
    '…',
  ];
  assert.deepEqual(seconds.map(duration), texts);
});

test('bandwidths, sizes and counts', () => {
  assert.deepEqual([0.44, 9.9, 9.96, 840.4, 999.6, 12_400].map(bandwidth), [
    '0.4 Mbps',
    '9.9 Mbps',
    '10 Mbps',
    '840 Mbps',
    '1.0 Gbps',
    '12.4 Gbps',
  ]);
  assert.deepEqual([0.514, 42.04, 640.2, 24_105].map(memory), ['0.51 MiB', '42.0 MiB', '640 MiB', '23.5 GiB']);
  assert.equal(grouped(1234567), '1,234,567');
  assert.deepEqual(
    [counted(1, 'layer'), counted(3, 'layer'), counted(2, 'process'), counted(2, 'batch')],
    ['1 layer', '3 layers', '2 processes', '2 batches'],
  );
  assert.equal(command('eval'), 'npx asteroid eval');
});
