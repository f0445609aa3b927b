import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ProtocolError } from '../errors.ts';
import { answerHandshake, beginHandshake } from './sealed-handshake.ts';

const options = { secret: 'run secret', context: 'context' };
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);

// Made with noiseprotocol 0.3.1 for Python: the secret's SHA-256 as the pre-shared key, the context as the prologue.
const vector = {
  first: 'a4e09292b651c278b9772c569f5fa9bb13d906b46ab68c9df9dc2b4409f8a209c611cf0bdc4f9f7d1d390662d4ca5f13',
  second: 'ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d5919b704887494cb6256716fc6a2c94bb1',
  toResponder: '3a9a8a5e9c3ef95384ab6194415d092cab8c5f5d1641b34e7bb37a843d57f738',
  toInitiator: ['d91f24becdc38d737df0b0563471d786565fc3d640', '8323d5105e7f47bdb0379eac5cefb4513af554d47c3e'],
};

test('keys and messages are those of another implementation of Noise', () => {
  const begun = beginHandshake({ ...options, ephemeralKey: new Uint8Array(32).fill(1) });
  assert.equal(hex(begun.message), vector.first);
  const { answer, keys } = answerHandshake(begun.message, {
    ...options,
    ephemeralKey: new Uint8Array(32).fill(2),
  });
  assert.equal(hex(answer), vector.second);
  const ours = begun.finish(answer);
  const head = utf8('head');
  const sealed = ours.seal(utf8('to the responder'), head);
  assert.equal(hex(sealed), vector.toResponder);
  assert.equal(Buffer.from(keys.open(sealed, head)).toString(), 'to the responder');
  assert.deepEqual(
    ['first', 'second'].map((text) => hex(keys.seal(utf8(text), head))),
    vector.toInitiator,
  );
});

test('another secret, another context, or a changed byte is refused', () => {
  const { message } = beginHandshake(options);
  for (const other of [
    { ...options, secret: 'another' },
    { ...options, context: 'another' },
  ])
    assert.throws(() => answerHandshake(message, other), ProtocolError);
  for (const at of [0, 20, 40]) {
    const changed = Uint8Array.from(message);
    changed[at] = (changed[at] as number) ^ 1;
    assert.throws(() => answerHandshake(changed, options), ProtocolError);
  }
  assert.throws(() => answerHandshake(message.subarray(1), options), ProtocolError);
  const { answer } = answerHandshake(message, options);
  assert.throws(() => beginHandshake(options).finish(answer), ProtocolError, 'an answer to another beginning');
});

test('a message that is changed, repeated, left out, or sent back is refused', () => {
  const pair = (): {
    seal: (text: string) => Uint8Array;
    open: (sealed: Uint8Array) => string;
    mirror: () => string;
  } => {
    const begun = beginHandshake(options);
    const { answer, keys } = answerHandshake(begun.message, options);
    const ours = begun.finish(answer);
    const head = utf8('head');
    return {
      seal: (text) => ours.seal(utf8(text), head),
      open: (sealed) => Buffer.from(keys.open(sealed, head)).toString(),
      mirror: () => Buffer.from(ours.open(ours.seal(utf8('x'), head), head)).toString(),
    };
  };
  const changed = pair();
  const bytes = changed.seal('a message');
  bytes[3] = (bytes[3] as number) ^ 128;
  assert.throws(() => changed.open(bytes), ProtocolError);
  const repeated = pair();
  const once = repeated.seal('once');
  assert.equal(repeated.open(once), 'once');
  assert.throws(() => repeated.open(once), ProtocolError);
  const leftOut = pair();
  leftOut.seal('first');
  const second = leftOut.seal('second');
  assert.throws(() => leftOut.open(second), ProtocolError);
  assert.throws(() => pair().mirror(), ProtocolError);
  assert.throws(() => pair().open(new Uint8Array(3)), ProtocolError);
});

test('a public key of low order is refused', () => {
  const begun = beginHandshake(options);
  const zeros = new Uint8Array(48);
  assert.throws(() => begun.finish(zeros), ProtocolError);
});
