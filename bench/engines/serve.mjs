// An engine's side of the bench: it prepares a task when asked, then times repetitions of it.

/**
 * @param {string} name the engine's name with its version
 * @param {{ matmul(layout: 'NN' | 'NT' | 'TN', n: number): Promise<Run>, step(): Promise<Run>,
 * lora?(task: object): Promise<Run> }} tasks
 *   a prepared task runs `repetitions` times and resolves when the device has finished; what its
 *   `says` holds goes with the answer
 * @typedef {(repetitions: number) => Promise<void>} Run
 */
export function serve(name, tasks) {
  let run;
  process.on('message', async ({ id, prepare, repetitions }) => {
    try {
      if (prepare !== undefined) {
        run = undefined;
        run = await prepareRun(prepare);
        await run(1);
        process.send({ id, ...run.says });
        return;
      }
      const start = performance.now();
      const before = process.cpuUsage();
      await run(repetitions);
      const { user, system } = process.cpuUsage(before);
      const processorMs = (user + system) / 1000 / repetitions;
      process.send({ id, ms: (performance.now() - start) / repetitions, processorMs });
    } catch (error) {
      process.send({ id, error: String(error?.message ?? error).split('\n')[0] });
    }
  });
  process.on('disconnect', () => process.exit());
  process.send({ ready: name });

  function prepareRun({ task, ...rest }) {
    if (task === 'matmul') {
      return tasks.matmul(rest.layout, rest.n);
    }
    if (tasks[task] === undefined) {
      throw new Error(`has no ${task}`);
    }
    return tasks[task](rest);
  }
}
