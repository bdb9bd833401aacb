// An engine runs the commands of a queue, on worker threads or on the host itself.

export interface Engine {
  /** The threads that take chunks, or 0 where the host runs commands inline. */
  readonly threads: number;
  /** Tells the engine, which may be idle, that commands have been published. */
  wake(): void;
  /** Runs commands now to make room in the ring. Returns false where threads run them instead. */
  drain(): boolean;
  /** Sets whether the engine keeps the process alive, as it must while somebody awaits a result. */
  hold(isHeld: boolean): void;
  /** Ends the engine. Nothing runs afterwards. */
  dispose(): Promise<void>;
}

export interface EngineEvents {
  /** Called when everything that was queued before fence `id` has run. */
  onFence(id: number): void;
  /** Called when the engine cannot go on. */
  onFailure(error: Error): void;
}
