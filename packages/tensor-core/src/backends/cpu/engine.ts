// Who runs the commands of a queue: worker threads, or the host itself.

export interface Engine {
  /** Threads that take chunks; 0 where the host runs commands inline. */
  readonly threads: number;
  /** Commands have been published while the engine may have been idle. */
  wake(): void;
  /** Runs commands now to make room in the ring. False where that is not the host's business. */
  drain(): boolean;
  /** While held, the engine keeps the process alive: somebody waits for a result. */
  hold(isHeld: boolean): void;
  /** Ends it. Nothing runs afterwards. */
  dispose(): Promise<void>;
}

export interface EngineEvents {
  /** Everything queued before fence `id` has run. */
  onFence(id: number): void;
  /** The engine cannot go on. */
  onFailure(error: Error): void;
}
