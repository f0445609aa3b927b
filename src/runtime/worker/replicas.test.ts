// Copies that a device keeps for others: two of them may be on their way at once.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Tensor } from '../../graph/tensor.ts';
import { batchNormNet, subjectOf } from '../../testing/training-subjects.ts';
import { Catalog, type LayerRange } from './catalog.ts';
import { Replicas } from './replicas.ts';

const { sequence, state } = subjectOf(batchNormNet(), 4);
const layerCount = sequence.layers.length;
const ranges = { a: [0, 2], c: [2, layerCount] } as const;

type Owner = keyof typeof ranges;
interface Piece {
  readonly role: 'parameter' | 'buffer';
  readonly name: string;
  readonly value: Tensor;
}

/** All pieces of an owner's stage. */
function piecesOf(owner: Owner): Piece[] {
  const names = new Catalog(sequence).names(ranges[owner]);
  return (['parameter', 'buffer'] as const).flatMap((role) =>
    [...state[role]].filter(([name]) => names.has(name)).map(([name, value]) => ({ role, name, value })),
  );
}

function names(replicas: Replicas, round: number, layers: LayerRange): string[] {
  return replicas.entries(round, new Catalog(sequence).names(layers)).map(({ name }) => name);
}

test('copies from two devices come in piece by piece, and are whole each by itself', () => {
  const replicas = new Replicas(new Catalog(sequence));
  const [ofA, ofC] = [piecesOf('a'), piecesOf('c')];
  assert.ok(ofA.length > 1 && ofC.length > 1);
  const add = (owner: Owner, { value, ...entry }: Piece, round: number): void =>
    replicas.add(owner, { round, layers: ranges[owner] }, entry, value);
  for (let index = 0; index < Math.max(ofA.length, ofC.length); index++) {
    for (const [owner, pieces] of [
      ['a', ofA],
      ['c', ofC],
    ] as const) {
      const piece = pieces[index];
      if (piece !== undefined) add(owner, piece, 3);
    }
  }
  replicas.end('c', { round: 3, layers: ranges.c }, { count: ofC.length, base: -1 });
  assert.deepEqual(
    names(replicas, 3, [0, layerCount]),
    ofC.map(({ name }) => name),
  );
  replicas.end('a', { round: 3, layers: ranges.a }, { count: ofA.length, base: -1 });
  assert.deepEqual(new Set(names(replicas, 3, [0, layerCount])), new Set([...ofA, ...ofC].map(({ name }) => name)));
  // Of the next version, a sends one piece, c begins and is interrupted.
  add('a', ofA[0] as Piece, 5);
  add('c', ofC[0] as Piece, 5);
  replicas.end('a', { round: 5, layers: ranges.a }, { count: 1, base: 3 });
  assert.deepEqual(new Set(names(replicas, 5, [0, layerCount])), new Set(ofA.map(({ name }) => name)));
  replicas.interrupt();
  assert.throws(
    () => replicas.end('c', { round: 5, layers: ranges.c }, { count: 1, base: 3 }),
    /c sent 0 pieces of a copy and said 1/,
  );
  assert.deepEqual(replicas.rounds, [3, 5]);
});

test('what is not of the announced layers, or comes twice, is refused', () => {
  const replicas = new Replicas(new Catalog(sequence));
  const [{ value, ...entry }] = piecesOf('a') as [Piece];
  assert.throws(
    () => replicas.add('c', { round: 0, layers: ranges.c }, entry, value),
    /c sent the parameter .* for a copy of layers 2 to/,
  );
  replicas.add('a', { round: 0, layers: ranges.a }, entry, value);
  assert.throws(
    () => replicas.add('a', { round: 0, layers: ranges.a }, entry, value),
    /a sent the parameter .* for a copy of layers 0 to 2/,
  );
  assert.throws(
    () => replicas.end('a', { round: 0, layers: ranges.a }, { count: 1, base: -1 }),
    /a sent a copy without /,
  );
});
