// Is loaded before a command whose ranks are threads: at SIGURG the one ends that has lived
// longest, whatever it does.

const living = new Set();
process.on('worker', (worker) => {
  living.add(worker);
  worker.once('exit', () => living.delete(worker));
});
process.on('SIGURG', () => void [...living][0]?.terminate());
