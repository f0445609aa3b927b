// Worker processes of the machine that a run is started on, as a session sees them; its host starts them.

/** Where a worker process finds its run. */
export interface PlaceToJoin {
  readonly url: string;
  readonly joinCode: string;
  /** The coordinator listens on an address of the network: its peers may be elsewhere. */
  readonly insecure: boolean;
}

/** Worker processes of this machine, which wait to be told whom to join. */
export interface LocalWorkers {
  /** To be called once. `isAwaited`: true while the run waits for its workers; one that ends later is a lost device. */
  join(place: PlaceToJoin & { isAwaited(): boolean }): void;
  /** Rejects when a worker ends while it is awaited; never resolves. */
  readonly failed: Promise<never>;
  /** Resolves when all processes have ended; processes that linger for 2 s after the links closed are killed. */
  ended(): Promise<void>;
  /** Kills them: nobody needs them any more. */
  drop(): void;
}
