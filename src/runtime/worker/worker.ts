// A worker: one device's part of a run. It does what the coordinator's messages say, one after the other; pipeline data
// flow into the mailbox meanwhile. It ends when the coordinator ends the run or the link to it is lost; nothing of the
// run outlives it.

import { RunError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';
import { feedName } from '../device/pieces.ts';
import type { ModelMessage } from '../protocol/model-message.ts';
import { Commits } from './commits.ts';
import { WorkerContext } from './context.ts';
import { snapshot } from './copies.ts';
import { announce, establish, reserve } from './establish-layout.ts';
import { type Handlers, Inbox } from './inbox.ts';
import { Superseded } from './layout-session.ts';
import { fileData, Links, stateArrived } from './links.ts';
import { measureAgain, measureAll, profile, Statistics } from './measuring.ts';
import { receiveModel } from './model.ts';
import { noMeters, type WorkerEnd, type WorkerOptions } from './options.ts';
import { Rounds } from './rounds.ts';
import { StreamRounds } from './stream-rounds.ts';
import { WorkReport } from './work-report.ts';

/** How many rounds may be updated before they have committed. */
const commitWindow = 1;

interface Parts {
  readonly context: WorkerContext;
  readonly inbox: Inbox;
  readonly links: Links;
  readonly rounds: Rounds;
  readonly streamRounds: StreamRounds;
  readonly statistics: Statistics;
}

/** Serves one run; resolves when it is over. */
export async function runWorker(options: WorkerOptions): Promise<WorkerEnd> {
  const context = new WorkerContext(options);
  const work = new WorkReport(options.processWork, options.engine);
  const statistics = new Statistics(options.meters ?? noMeters);
  const links = new Links(context, work);
  const commits = new Commits();
  const common = { peers: links.peers, work, statistics, window: commitWindow };
  const rounds = new Rounds(context, common, commits);
  const streamRounds = new StreamRounds(context, common, commits);
  const parts = { context, inbox: new Inbox(), links, rounds, streamRounds, statistics };
  const handlers = handlersOf(parts);
  options.coordinator.receive((frame) => {
    if (frame.kind === 'input' || frame.kind === 'label') fileData(context.session, feedName, frame);
    else parts.inbox.receive(frame, handlers);
  });
  void options.coordinator.ended.then(({ clean, reason }) =>
    context.end({ clean: false, lost: true, reason: clean ? reason : `the coordinator is gone: ${reason}` }),
  );
  return serve(parts);
}

/** Everything that the coordinator may ask for, and when it is done. */
function handlersOf({ context, inbox, links, rounds, streamRounds, statistics }: Parts): Handlers {
  const { peers } = links;
  return {
    model: { when: 'in-turn', do: ({ control, frame }) => takeModel(context, links, control, frame) },
    connect: { when: 'in-turn', do: ({ control }) => links.connect(control.peers) },
    measure: { when: 'in-turn', do: ({ control }) => measureAll(context, peers, control) },
    'measure-link': { when: 'at-once', do: ({ control }) => measureAgain(context, peers, control.peer) },
    profile: { when: 'in-turn', do: ({ control }) => profile(context, control) },
    deploy: {
      when: 'at-once',
      do({ control, frame }) {
        links.layoutBegins();
        announce(context, links, control, frame.epoch);
        rounds.forget();
        inbox.restart(() => establish(context, links, control));
      },
    },
    state: { when: 'at-once', do: ({ control, frame }) => stateArrived(context.session, null, control, frame) },
    round: {
      when: 'in-turn',
      do({ control }) {
        links.roundBegins(control);
        return context.isStreaming() ? streamRounds.run(control) : rounds.run(control);
      },
    },
    flush: { when: 'in-turn', do: ({ control }) => streamRounds.flush(control) },
    commit: {
      when: 'at-once',
      do({ control }) {
        links.roundCommitted(control.round);
        rounds.committed(control);
      },
    },
    snapshot: {
      when: 'in-turn',
      do: ({ control }) => snapshot(context, control, { committed: rounds.commitOf(control.round - 1), statistics }),
    },
    release: { when: 'at-once', do: ({ control }) => context.model?.layouts.release(control.before) },
    probe: { when: 'at-once', do: () => context.notify('alive', {}) },
    gone: { when: 'at-once', do: ({ control }) => links.gone(control.peer) },
    call: { when: 'at-once', do: ({ control }) => links.called(control) },
    reserve: { when: 'at-once', do: ({ control }) => reserve(context, control) },
    end: { when: 'at-once', do: ({ control }) => context.end({ clean: true, reason: control.reason }) },
  };
}

async function takeModel(context: WorkerContext, links: Links, control: ModelMessage, frame: Frame): Promise<void> {
  context.model = receiveModel(control, frame, context.options.readModel);
  await context.send('ready', { listenUrl: await links.listen(control.peerToken) });
}

/** Does what is asked in its turn, until something ends it. */
async function serve(parts: Parts): Promise<WorkerEnd> {
  const { context, inbox } = parts;
  const { leave } = context.options;
  let end: WorkerEnd = { clean: false, reason: 'the worker has failed' };
  const stopHeartbeat = context.beat();
  const askToLeave = (): void => context.notify('leaving', {});
  leave?.addEventListener('abort', askToLeave, { once: true });
  try {
    for (;;) {
      try {
        const next = await inbox.next((waiting) => context.guard(waiting));
        await next();
      } catch (error) {
        if (!(error instanceof Superseded)) throw error;
      }
    }
  } catch (error) {
    // What the coordinator said counts, whatever its end interrupted.
    end = context.ended ?? (await context.reportFailure(error));
  } finally {
    leave?.removeEventListener('abort', askToLeave);
    stopHeartbeat();
    await close(parts, end.reason);
  }
  return end;
}

async function close({ context, links, statistics }: Parts, reason: string): Promise<void> {
  const { coordinator, stagesAhead } = context.options;
  statistics.stop();
  context.session.mailbox.fail(new RunError(reason));
  await Promise.all([links.close(reason), coordinator.close(reason), stagesAhead?.close()]);
  context.model?.layouts.dispose();
  if (context.lasting !== undefined) await context.lasting;
}
