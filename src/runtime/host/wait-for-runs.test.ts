import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { InputError, RunError } from '../../errors.ts';
import { drainedReason } from '../protocol/drained.ts';
import { isListening, serveRuns } from './wait-for-runs.ts';

/** What happens to a device at each of its looks: nobody is there; a run refuses it; or it serves until an end. */
type Look = 'nobody' | { readonly refused: Error } | { readonly ends: string };

/** Serves along these looks; all that was told, in order. */
async function served(...looks: readonly Look[]): Promise<readonly string[]> {
  const told: string[] = [];
  const stopping = new AbortController();
  let index = 0;
  await serveRuns({
    signal: stopping.signal,
    absence: async () => (looks[index] === 'nobody' ? 'nobody is there' : undefined),
    async join() {
      const look = looks[index];
      assert.ok(typeof look === 'object');
      if ('refused' in look) throw look.refused;
      told.push('joined');
      return { clean: true, reason: look.ends };
    },
    async pause() {
      index++;
      if (index === looks.length) stopping.abort();
    },
    onEnd: ({ reason }) => told.push(`end: ${reason}`),
    onWaiting: (reason) => told.push(`waiting: ${reason}`),
  });
  return told;
}

const over = { ends: 'the run is over' };

test('it serves one run after another, and says once that it waits', async () => {
  const found = await served('nobody', 'nobody', over, over, 'nobody', { refused: new RunError('full') }, over);
  const run = ['joined', 'end: the run is over'];
  assert.deepEqual(found, ['waiting: nobody is there', ...run, ...run, 'waiting: nobody is there', ...run]);
});

test('who was drained does not come back to the same run', async () => {
  const drained = { ends: drainedReason };
  const found = await served(drained, drained, drained, 'nobody', over);
  assert.deepEqual(found, [
    ...['joined', `end: ${drainedReason}`, 'waiting: nobody is there'],
    ...['joined', 'end: the run is over'],
  ]);
});

test('what waiting does not mend ends it', async () => {
  await assert.rejects(served({ refused: new InputError('the join code is wrong') }, over), InputError);
});

test('a port that listens is told from one that does not', async () => {
  const server = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  assert.ok(address !== null && typeof address === 'object');
  const url = `wss://127.0.0.1:${address.port}`;
  assert.equal(await isListening(url), true);
  server.close();
  await once(server, 'close');
  assert.equal(await isListening(url), false);
});
