// An engine's side of the bench: prepares a task when told, then times repetitions of it.

/**
 * @param {string} name with its version
 * @param {{ matmul(layout: 'NN' | 'NT' | 'TN', n: number): Promise<Run>, step(): Promise<Run> }} tasks
 *   each prepared task runs `repetitions` times and resolves when the device has done them
 * @typedef {(repetitions: number) => Promise<void>} Run
 */
export function serve(name, tasks) {
  let run;
  process.on('message', async ({ id, prepare, repetitions }) => {
    try {
      if (prepare !== undefined) {
        run = undefined;
        run = await (prepare.task === 'step'
          ? tasks.step()
          : tasks.matmul(prepare.layout, prepare.n));
        await run(1);
        process.send({ id });
        return;
      }
      const start = performance.now();
      await run(repetitions);
      process.send({ id, ms: (performance.now() - start) / repetitions });
    } catch (error) {
      process.send({ id, error: String(error?.message ?? error).split('\n')[0] });
    }
  });
  process.send({ ready: name });
}
