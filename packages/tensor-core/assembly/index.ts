// The kernels, with both ways to have commands run: by the host itself, or by threads.

export { runNext } from './inline';
export { work } from './threaded';
