// The module exports both ways to run commands: runNext for a host that runs them itself, and work
// for threads.

export { runNext } from './inline';
export { work } from './threaded';
