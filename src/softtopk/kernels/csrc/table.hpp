// The kernels of one instruction set. Included last in its file.

template <class T>
Kernels<T> kernels() {
    return {threshold<T>, threshold_gradient<T>, softmax<T>, hard_softmax<T>, softmax_gradient<T>,
            ranking<T>,   ranking_gradient<T>};
}

inline InstructionSet table(const char* name) {
    return {name, kernels<float>(), kernels<double>()};
}
