export { MpiCallError } from './transports/mpi/mpi-library.js';
