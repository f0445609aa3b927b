// What a round on one device needs from outside: clock, links, the end of waiting, and when its update may be applied.

import type { Clock } from '../../clock.ts';
import type { ActivationEncoding } from '../../cluster/compression.ts';
import type { Failure } from '../../failure.ts';
import type { Frame, Priority } from '../../transport/link.ts';
import type { MailKey } from './mailbox.ts';
import type { UpdateOptions } from './stage-update.ts';

/** When a round's update may be applied, and how. */
export interface UpdatePolicy {
  /** What `due` will resolve with, if it is known before the round; a stage whose step updates must know. */
  readonly planned?: UpdateOptions | undefined;
  /**
   * Asked when the round's gradients are final. Resolves when the update may be applied at once, so that the device has
   * work while the sums are on their way to the coordinator; with undefined, whoever called `runRound` applies it.
   */
  due(): Promise<UpdateOptions | undefined>;
}

/** What a round needs from the outside world. */
export interface RoundPorts {
  readonly clock: Clock;
  send(to: string, frame: Omit<Frame, 'epoch'>, priority: Priority): Promise<void>;
  receive(key: MailKey): Promise<Frame>;
  /**
   * In what activations of this many bytes travel, of a plan that says that they are encoded; undefined: as they are.
   * Absent: as the plan says.
   */
  encodingOf?(
    to: string,
    activations: { readonly round: number; readonly bytes: number },
  ): ActivationEncoding | undefined;
  /** Takes outputs of a stage whose schedule only infers; resolves under back-pressure as `send` does. */
  giveResult?(frame: Omit<Frame, 'epoch'>): Promise<void>;
  /** Ends every wait when the device must give up the round. */
  readonly failure: Failure;
  readonly updates: UpdatePolicy;
  /** True if no times of instructions are wanted: a smaller batch has others than the plan's. */
  readonly isUntraced?: boolean;
  /** Milliseconds that the process has worked so far; undefined if nobody knows. */
  processWorkMs?(): number | undefined;
}
