// A browser's graphics chip may be lost while it computes: its driver starts again, a laptop changes chips, the browser
// takes it back. ONNX Runtime does not say so, and what it waits for may never come. Here every call that needs the
// chip fails when it is lost, in one sentence.

import { RunError } from '../errors.ts';
import { Failure } from '../failure.ts';
import type { OnnxRuntime } from './onnxruntime-module.ts';

/** `GPUDevice`, as far as it is used here. */
export interface GpuDevice {
  /** Resolves when the device is lost, with a sentence for developers. */
  readonly lost: Promise<{ readonly message: string }>;
}

/** Whether the device of a runtime is lost. */
export class GpuLoss {
  readonly #failure = new Failure();
  #reason: RunError | undefined;

  /** The device that calls wait for; undefined: it cannot be told whether it is lost. */
  watch(device: GpuDevice | undefined): void {
    void device?.lost.then(({ message }) => {
      const reason = message.trim().replace(/\.$/, '') || 'its driver gives no reason';
      this.#reason = new RunError(
        `The graphics chip was lost while it computed (${reason}): join again, or compute on the processor.`,
      );
      this.#failure.fail(this.#reason);
    });
  }

  /**
   * The runtime, whose calls reject with RunError once the device is lost, also those under way. Releasing resolves:
   * nothing is left of a session.
   */
  guard({ InferenceSession, Tensor }: OnnxRuntime): OnnxRuntime {
    const unlessLost = (error: unknown): void => {
      if (error !== this.#reason) throw error;
    };
    const guard = <T>(work: Promise<T>): Promise<T> => this.#failure.guard(work);
    return {
      Tensor,
      InferenceSession: {
        async create(model, options) {
          const session = await guard(InferenceSession.create(model, options));
          return {
            run: (feeds, fetches) => guard(session.run(feeds, fetches)),
            release: () => guard(session.release()).catch(unlessLost),
          };
        },
      },
    };
  }
}
