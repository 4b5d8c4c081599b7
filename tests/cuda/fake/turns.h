// A GPU that processes have by turns, as drivers without MPS give it: FAKE_CUDA_TURNS=/path names a file that they share. While a kernel of
// one process runs none of another does, so that one which waits for another process's never ends.
#pragma once

namespace fake_driver {

/// Before a kernel begins. False: another process has its turn.
bool take_turn();
/// When it has ended.
void end_turn();

}  // namespace fake_driver
